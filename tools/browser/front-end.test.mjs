// The official front end against a running Gantry, as a person uses it: every test goes on where the one before it
// stopped, in one page. run.sh starts the server and this file; README.md says what is checked.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { FrontEnd, PATIENCE_MS, waitFor } from './page.mjs';

const here = path.dirname(fileURLToPath(import.meta.url));
const url = needed('GANTRY_URL');
const chromiumPath = needed('CHROMIUM');
const screenshots = needed('SCREENSHOTS');

/** The ids of the nodes in both workflow files. */
const PROMPT_TEXT = '5';
const SAMPLER = '7';
const SAVED_IMAGE = '9';
const ALL_NODES = ['1', '2', '3', '4', '5', '6', '7', '8', '9'];
/** The steps of `demo-flux.json`: enough for a person, and a test, to see them pass. */
const STEPS = 100;

/** @type {FrontEnd} */
let frontEnd;

before(async () => {
  frontEnd = await FrontEnd.launch({ url, chromiumPath, screenshots });
});

after(async () => {
  await frontEnd?.close();
});

scenario('boots', async ({ page }) => {
  await frontEnd.open();
  // Only the first visit to a fresh install greets with the templates.
  const greeting = page.getByTestId('template-filter-bar');
  await greeting.waitFor();
  await page.getByText('Text to picture').first().waitFor();
  await frontEnd.screenshot('first-visit');

  const types = frontEnd.frames.map((frame) => frame.type);
  assert.equal(types[0], 'status', 'the first frame of a socket is its status');
  assert.ok(frontEnd.frames[0].data.sid, 'the first status names the client');
  const flags = await waitFor(() => frontEnd.frames.find((frame) => frame.type === 'feature_flags'));
  assert.equal(flags?.data.supports_preview_metadata, true);
});

scenario('draws with one click on the first screen and Run', async ({ page }) => {
  await page.getByText('Text to picture').first().click();
  await page.getByTestId('template-filter-bar').waitFor({ state: 'hidden' });
  await waitForPage(() => window.app.graph.nodes.some((node) => node.type === 'SaveImage'), 'the template is on the canvas');
  await finish(await start());
  await waitForPage(
    () => window.app.graph.nodes.some((node) => node.type === 'SaveImage' && node.imgs?.[0]?.naturalWidth > 0),
    'the picture is shown',
  );
  await page.getByText('0 active').waitFor();
  await frontEnd.screenshot('first-picture');
});

scenario('opens a FLUX workflow', async ({ page }) => {
  await frontEnd.openWorkflowFile(path.join(here, 'demo-flux.json'));
  // The canvas is one bitmap, so what it holds is asked of the application that drew it.
  const graph = await page.evaluate(() =>
    window.app.graph.nodes.map((node) => ({
      id: String(node.id),
      type: node.type,
      known: Boolean(node.constructor.nodeData),
      values: Object.fromEntries((node.widgets ?? []).map((widget) => [widget.name, widget.value])),
    })),
  );
  assert.deepEqual(graph.map((node) => node.id).sort(), ALL_NODES);
  assert.deepEqual(graph.filter((node) => !node.known), [], 'every class of the workflow is known');
  const sampler = graph.find((node) => node.id === SAMPLER);
  assert.equal(sampler.values.sampler_name, 'euler');
  assert.equal(sampler.values.scheduler, 'simple');
  assert.equal(sampler.values.steps, STEPS);
  assert.equal(sampler.values.seed, 7);
  assert.equal(await page.getByTestId('error-overlay').count(), 0, 'nothing is missing');
  await frontEnd.screenshot('workflow-opened');
});

scenario('runs it and draws progress, preview and picture on the canvas', async ({ page }) => {
  const promptId = await start();

  await waitForPage(() => /^\[\d+%\]\[[1-9]\d?%\] KSampler$/.test(document.title), 'the title counts the steps');
  await page.getByText('1 active').waitFor();
  // The canvas is one bitmap, so these are the numbers and pictures that the application draws onto it.
  await waitForPage((id) => {
    const { progress } = window.app.graph.getNodeById(id);
    return progress > 0 && progress < 1;
  }, 'the sampler has a progress bar', SAMPLER);
  await waitForPage((id) => window.app.graph.getNodeById(id).imgs?.[0]?.naturalWidth > 0, 'the sampler has a preview', SAMPLER);
  await frontEnd.screenshot('canvas-running');

  await frontEnd.waitForFrame(promptId, (frame) => frame.type === 'execution_success');
  await waitForPage((id) => window.app.graph.getNodeById(id).imgs?.[0]?.naturalWidth === 128, 'the picture is shown', SAVED_IMAGE);
  await page.getByText('0 active').waitFor();
  await frontEnd.waitForWorkflow('demo-flux');
  await frontEnd.screenshot('canvas-done');

  await frontEnd.waitForFrame(promptId, isLast);
  checkFrames(frontEnd.framesOf(promptId));
});

scenario('runs it with "Nodes 2.0" and shows progress, preview and picture on the nodes', async ({ page }) => {
  await page.getByTestId('comfy-menu-button').click();
  await page.getByText('Nodes 2.0').click();
  await frontEnd.node(SAMPLER).waitFor();
  await page.keyboard.press('Escape');
  await page.getByRole('menu').waitFor({ state: 'hidden' });

  await frontEnd.node(PROMPT_TEXT).locator('textarea').fill('a large blue square in the center');
  const promptId = await start();
  // The bar has no name of its own: it is the only thing with a width between the title and the body of the node.
  const bar = frontEnd.node(SAMPLER).locator('[data-testid="node-inner-wrapper"] > .relative > [style*="width"]');
  const seen = await waitFor(async () => {
    const width = (await bar.count()) && (await bar.evaluate((element) => parseFloat(element.style.width)));
    return width > 0 && width < 100 && width;
  });
  assert.ok(seen, 'the sampler shows a progress bar');
  const preview = frontEnd.node(SAMPLER).getByAltText('Live sampling preview');
  await preview.waitFor();
  assert.ok(await waitFor(() => preview.evaluate((image) => image.naturalWidth)), 'the preview is a picture');
  await frontEnd.screenshot('nodes-running');

  await frontEnd.waitForFrame(promptId, isLast);
  const saved = checkFrames(frontEnd.framesOf(promptId));
  // The node shows the picture of the run before until the new one is there.
  const picture = frontEnd.node(SAVED_IMAGE).locator(`[data-testid="main-image"][src*="${saved}"]`);
  await picture.waitFor();
  await frontEnd.node(SAVED_IMAGE).getByText('128 x 128').waitFor();
  await frontEnd.screenshot('nodes-done');
  const [middle, corner] = [await frontEnd.colourIn(picture, 0.5, 0.5), await frontEnd.colourIn(picture, 0.02, 0.02)];
  assert.ok(middle.blue > middle.red + 60, `the middle is blue: ${JSON.stringify(middle)}`);
  assert.ok(Math.min(corner.red, corner.green, corner.blue) > 180, `the corner is white: ${JSON.stringify(corner)}`);
});

scenario('lists the finished jobs', async () => {
  const list = await frontEnd.jobList();
  const jobs = list.locator('[data-job-id]');
  // That of the first screen, and two of the workflow.
  await waitForCount(jobs, 3);
  for (const job of await jobs.all()) {
    assert.match(await job.innerText(), /\w+_0000\d_\.png\s+\d+(\.\d+)?s/, 'a job shows its file and how long it took');
    const thumbnail = job.locator('img');
    assert.ok(await waitFor(() => thumbnail.evaluate((image) => image.naturalWidth)), 'a job shows its picture');
  }
  await frontEnd.screenshot('jobs');
});

scenario('cancels a waiting job and a running one', async ({ page }) => {
  await frontEnd.openWorkflowFile(path.join(here, 'demo-flux-long.json'));
  const running = await start();
  const waiting = await start();
  await frontEnd.waitForFrame(running, (frame) => frame.type === 'progress_state' && frame.data.nodes[SAMPLER]?.value > 1);
  const list = await frontEnd.jobList();
  await page.getByText('2 active').waitFor();
  await frontEnd.screenshot('two-active');

  const waitingJob = list.locator(`[data-job-id="${waiting}"]`);
  await waitingJob.hover();
  await waitingJob.getByRole('button', { name: 'Cancel' }).click();
  await page.getByText('1 active').waitFor();
  await waitingJob.waitFor({ state: 'detached' });

  await page.getByRole('button', { name: 'Cancel current run' }).click();
  const stopped = await frontEnd.waitForFrame(running, (frame) => frame.type === 'execution_interrupted');
  assert.equal(stopped.data.node_id, SAMPLER);
  assert.equal(stopped.data.node_type, 'KSampler');
  await page.getByText('0 active').waitFor();
  await frontEnd.waitForFrame(running, isLast);
  assert.equal(frontEnd.framesOf(running).some((frame) => frame.type === 'execution_success'), false);
  assert.deepEqual(frontEnd.framesOf(waiting), [], 'the waiting job never began');
  // The front end has one word for all jobs that did not end well.
  await list.locator(`[data-job-id="${running}"]`).getByText('Failed').first().waitFor();
  const job = await getJson(`/api/jobs/${running}`);
  assert.equal(job.status, 'cancelled');
  await frontEnd.screenshot('cancelled');
});

scenario('uploads a picture that is dropped on the canvas', async ({ page }) => {
  const file = path.join(here, 'dropped.png');
  const uploaded = page.waitForResponse((response) => response.url().endsWith('/api/upload/image'));
  await page.locator('#graph-canvas').drop({ files: file }, { position: { x: 700, y: 800 } });
  const response = await uploaded;
  assert.equal(response.status(), 200);
  assert.deepEqual(await response.json(), { name: 'dropped.png', subfolder: '', type: 'input' });

  const node = page.locator('[data-node-id]').filter({ has: page.getByTestId('node-title').getByText('Load Image') });
  const picture = node.getByTestId('main-image');
  await picture.waitFor();
  await node.getByText('96 x 64').waitFor();
  const colour = await frontEnd.colourIn(picture, 0.75, 0.5);
  assert.deepEqual(colour, { red: 20, green: 160, blue: 60 }, 'the picture that is shown is the one that was dropped');
  const kept = await fetch(new URL('/api/view?filename=dropped.png&type=input', url));
  assert.deepEqual(Buffer.from(await kept.arrayBuffer()), fs.readFileSync(file), 'the server kept every byte of it');
  await frontEnd.screenshot('uploaded');
});

scenario('saves a workflow, closes it and opens it again', async ({ page }) => {
  await page.keyboard.press('Control+s');
  const dialog = page.getByRole('dialog');
  await dialog.locator('input').fill('kept by the test');
  await dialog.getByRole('button', { name: 'Confirm' }).click();
  await frontEnd.waitForWorkflow('kept by the test');
  const saved = await getJson('/api/userdata/workflows%2Fkept%20by%20the%20test.json');
  assert.equal(saved.nodes.length, ALL_NODES.length + 1, 'the nodes of the file and the dropped picture');

  await frontEnd.tab('kept by the test').hover();
  await frontEnd.tab('kept by the test').getByTestId('close-workflow-button').click();
  await frontEnd.tab('kept by the test').waitFor({ state: 'detached' });

  // A new page knows nothing but what the server tells it.
  await frontEnd.open();
  await page.getByTestId('workflows-tab-button').click();
  await page.getByTestId('tree-node-root/kept by the test.json').click();
  await frontEnd.waitForWorkflow('kept by the test');
  await page.getByTestId('node-title').getByText('Load Image').waitFor();
  assert.equal(await page.locator('[data-node-id]').count(), ALL_NODES.length + 1);
  await frontEnd.screenshot('reopened');
  assert.equal(await page.getByTestId('error-overlay').count(), 0, 'nothing is missing, the dropped picture neither');
  await page.getByTestId('sidebar-close-button').click();
});

scenario("shows every device's memory, keeps a model and ejects it, in the tab of the side bar", async ({ page }) => {
  await page.getByRole('button', { name: /Gantry/ }).first().click();
  const row = page.locator('.gantry-device').first();
  await row.waitFor();
  const { devices } = await getJson('/gantry/devices');
  assert.equal(await row.getAttribute('data-device'), devices[0].id);
  assert.ok(
    await waitFor(async () => Number(await row.getAttribute('data-used-bytes')) === (await getJson('/gantry/devices')).devices[0].used_bytes),
    'the tab shows the bytes that the server has',
  );
  const name = (await loadedModels()).find((it) => it !== 'demo-flux.safetensors');
  const model = page.locator('.gantry-model', { hasText: name }).first();
  await model.locator('select').selectOption('keep');
  const isNow = async (retention) => (await getJson('/gantry/models')).models.find((it) => it.name === name)?.retention === retention;
  assert.ok(await waitFor(() => isNow('keep')), 'the choice reached the server');
  await frontEnd.screenshot('gantry-tab');
  await model.locator('select').selectOption('eject');
  assert.ok(await waitFor(() => isNow('eject')), 'the choice reached the server');
  const others = (await loadedModels()).filter((it) => it !== name).sort();
  await page.getByRole('button', { name: 'Unload models' }).click();
  assert.ok(
    await waitFor(async () => JSON.stringify((await loadedModels()).sort()) === JSON.stringify(others)),
    `exactly ${name} left: ${await loadedModels()}`,
  );
  await page.getByRole('button', { name: /Gantry/ }).first().click();
});

scenario('shows the plan of a loader while one types', async ({ page }) => {
  const line = (value) =>
    page.evaluate((alloc) => {
      const app = window.app;
      let node = app.graph.nodes.find((it) => it.type === 'UNETLoaderDisTorch2MultiGPU');
      if (!node) {
        node = window.LiteGraph.createNode('UNETLoaderDisTorch2MultiGPU');
        app.graph.add(node);
      }
      const widget = node.widgets.find((it) => it.name === 'expert_mode_allocations');
      if (alloc !== undefined && widget.value !== alloc) {
        widget.value = alloc;
        widget.callback?.(alloc);
      }
      return node.widgets.find((it) => it.name === 'gantry_plan')?.value ?? '';
    }, value);
  assert.ok(await waitFor(async () => /GiB/.test(await line('cpu,*'))), `a plan is shown: ${await line()}`);
  assert.ok(await waitFor(async () => /^character 6: /.test(await line('cpu,2xb'))), `an error points at its place: ${await line()}`);
  // A plan that is sent from the dashboard reaches the loader of its file.
  const sent = { file: 'demo-flux.safetensors', alloc: 'cpu,100%' };
  const answer = await fetch(new URL('gantry/loaders', url), { method: 'POST', body: JSON.stringify(sent) });
  assert.ok((await answer.json()).clients >= 1, 'the page is connected');
  const taken = () =>
    page.evaluate(() => {
      const node = window.app.graph.nodes.find((it) => it.type === 'UNETLoaderDisTorch2MultiGPU');
      return node.widgets.find((it) => it.name === 'expert_mode_allocations').value;
    });
  assert.ok(await waitFor(async () => (await taken()) === sent.alloc), `the loader has ${await taken()}`);
  await page.evaluate(() => window.app.graph.remove(window.app.graph.nodes.find((it) => it.type === 'UNETLoaderDisTorch2MultiGPU')));
});

scenario('presses both memory buttons', async ({ page }) => {
  await frontEnd.tab('demo-flux').click();
  await frontEnd.waitForWorkflow('demo-flux');
  await finish(await start());
  assert.ok((await loadedModels()).includes('demo-flux.safetensors'), 'a run leaves its models loaded');

  assert.deepEqual(await free('Unload Models'), { unload_models: true });
  await frontEnd.screenshot('models-unloaded');
  const again = await start();
  await finish(again);
  const kept = frontEnd.framesOf(again).find((frame) => frame.type === 'execution_cached');
  assert.ok(kept.data.nodes.includes(SAMPLER), 'unloading models keeps what was computed');

  assert.deepEqual(await free('Unload Models and Execution Cache'), { unload_models: true, free_memory: true });
  await frontEnd.screenshot('memory-freed');
  const afresh = await start();
  await finish(afresh);
  const forgotten = frontEnd.framesOf(afresh).find((frame) => frame.type === 'execution_cached');
  assert.deepEqual(forgotten.data.nodes, [], 'clearing the execution cache forgets what was computed');
  await frontEnd.screenshot('run-afresh');
});

test('asks nothing of anyone but the server', () => {
  assert.deepEqual(frontEnd.foreign, []);
});

/** A test that keeps a picture when it fails, and that fails if the console had an error meanwhile. */
function scenario(name, steps) {
  test(name, { timeout: 4 * PATIENCE_MS }, async () => {
    try {
      await steps(frontEnd);
      assert.deepEqual(frontEnd.faults, [], 'the console has no errors');
    } catch (error) {
      await frontEnd.screenshot(`FAILED-${name.replaceAll(/[^a-z0-9]+/gi, '-')}`);
      throw error;
    } finally {
      frontEnd.faults.length = 0;
    }
  });
}

/** Presses Run, which must be accepted, and gives the id of the prompt. */
async function start() {
  const { status, body } = await frontEnd.run();
  assert.equal(status, 200, JSON.stringify(body));
  assert.deepEqual(body.node_errors, {});
  return body.prompt_id;
}

/** Waits until a prompt has ended well. */
async function finish(promptId) {
  await frontEnd.waitForFrame(promptId, (frame) => frame.type === 'execution_success');
  await frontEnd.waitForFrame(promptId, isLast);
}

/** Presses one of the memory buttons, and gives what it sent. */
async function free(button) {
  const posted = frontEnd.page.waitForResponse((response) => response.url().endsWith('/api/free'));
  await frontEnd.pressMenu('Edit', button);
  const response = await posted;
  assert.equal(response.status(), 200);
  const said = button.endsWith('Cache') ? /Models and Execution Cache have been cleared/i : /Models have been unloaded/i;
  await frontEnd.page.getByText(said).first().waitFor();
  const gone = await waitFor(async () => (await loadedModels()).length === 0);
  assert.ok(gone, `still loaded: ${await loadedModels()}`);
  return response.request().postDataJSON();
}

/** Whether this is the frame that ends a prompt. */
function isLast(frame) {
  return frame.type === 'executing' && frame.data.node === null;
}

/** Checks what came for one prompt that ran the sampler, and in which order; gives the name of the picture it saved. */
function checkFrames(frames) {
  const types = frames.map((frame) => frame.type);
  const order = ['execution_start', 'execution_cached', 'progress_state', 'executing', 'binary', 'progress', 'executed', 'execution_success'];
  const places = order.map((type) => types.indexOf(type));
  assert.ok(!places.includes(-1), `all kinds of frames came: ${[...new Set(types)].join(', ')}`);
  assert.deepEqual(places, places.toSorted((a, b) => a - b), `the first of each kind in this order: ${order.join(', ')}`);
  assert.ok(isLast(frames.at(-1)), 'the last frame says that nothing runs any more');

  const steps = frames
    .filter((frame) => frame.type === 'progress_state' && frame.data.nodes[SAMPLER]?.max === STEPS)
    .map((frame) => frame.data.nodes[SAMPLER].value);
  assert.ok(new Set(steps).size > 5, `the sampler's steps were told: ${steps.join(', ')}`);
  assert.deepEqual(steps, steps.toSorted((a, b) => a - b), 'progress never goes back');
  assert.equal(steps.at(-1), STEPS, 'the last step was told');

  const previews = frames.filter((frame) => frame.type === 'binary');
  assert.ok(previews.length > 5, 'previews came');
  for (const preview of previews) {
    assert.equal(preview.code, 4, 'previews carry their description');
    assert.equal(preview.meta.node_id, SAMPLER);
    assert.equal(preview.meta.image_type, 'image/jpeg');
    assert.equal(preview.image.readUInt16BE(0), 0xffd8, 'a preview is a JPEG');
  }

  const shown = frames.find((frame) => frame.type === 'executed');
  assert.equal(shown.data.node, SAVED_IMAGE);
  const [{ filename }] = shown.data.output.images;
  assert.match(filename, /^browser_\d{5}_\.png$/);
  return filename;
}

/** Waits until the page says yes to a question. */
async function waitForPage(question, what, argument) {
  try {
    await frontEnd.page.waitForFunction(question, argument);
  } catch (error) {
    throw new Error(`${what}: this did not happen`, { cause: error });
  }
}

async function waitForCount(locator, count) {
  assert.ok(await waitFor(async () => (await locator.count()) === count), `${await locator.count()} were there, not ${count}`);
}

/** The names of the models that the server holds. */
async function loadedModels() {
  const { models } = await getJson('/gantry/models');
  return models.map((model) => model.name);
}

async function getJson(place) {
  const response = await fetch(new URL(place, url));
  assert.equal(response.status, 200, place);
  return response.json();
}

function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: start this through run.sh`);
  return value;
}
