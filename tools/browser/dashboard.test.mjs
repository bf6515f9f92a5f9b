// The dashboard against a running Gantry with two simulated devices, as a person uses it: every test goes on where the one
// before it stopped, in one page. run.sh starts the server and this file; README.md says what is checked.

import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { cpuUse, Dashboard } from './dashboard.mjs';
import { PATIENCE_MS, waitFor } from './page.mjs';

const url = needed('GANTRY_URL');
const chromiumPath = needed('CHROMIUM');
const screenshots = needed('SCREENSHOTS');
const serverPid = Number(needed('GANTRY_PID'));
const results = needed('RESULTS');
/** Where a picture for the documentation goes; nowhere unless it is said. */
const pictures = process.env.KEEP_PICTURES;

const FLUX = 'demo-flux.safetensors';
const CLIP = 'demo-clip-l.safetensors';
const T5 = 'demo-t5.safetensors';
const VAE = 'demo-ae.safetensors';
/** What the diffusion model is given: megabytes on both devices, and what is left in the file. */
const ALLOCATION = 'sim:0,2mb;sim:1,1mb;cpu,*';
const MIB = 1024 * 1024;

/** The most that may be transferred, compressed, and how soon something must be seen. */
const MOST_BYTES = 150_000;
const FIRST_PAINT_MS = 200;
/** What the page may cost the server while a job runs, and the browser's own thread, in processor seconds per second. */
const MOST_LOAD = 0.01;
const MOST_OWN_LOAD = 0.03;
const WATCHED_MS = 6000;
/** Steps of jobs that are to run until they are interrupted, however fast the machine is. */
const MANY = 2000;
const VERY_MANY = 10_000;

/** @type {Dashboard} */
let dashboard;
const measured = {};

before(async () => {
  dashboard = await Dashboard.launch({ url, chromiumPath, screenshots });
});

after(async () => {
  await dashboard?.close();
  fs.writeFileSync(results, `${JSON.stringify(measured, null, 2)}\n`);
});

scenario('opens with nothing loaded, small and at once', async ({ page }) => {
  await dashboard.open();
  assert.equal(page.url(), new URL('gantry/', url).href, 'the address without a slash leads to the page');
  for (const [id, isSimulated] of [['cpu', false], ['sim:0', true], ['sim:1', true]]) {
    const row = dashboard.device(id);
    assert.equal(await row.getByText('simulated', { exact: true }).count(), isSimulated ? 1 : 0, id);
    const device = await deviceOf(id);
    assert.equal(await dashboard.figure(id, 'budget'), device.budget_bytes);
    // The planner measures devices at first, for which it uses a little memory.
    const isAll = await waitFor(async () => (await dashboard.figure(id, 'headroom')) === device.budget_bytes);
    assert.ok(isAll, `${id}: all of the budget is left`);
  }
  await page.getByText('No model is loaded. Run a workflow').waitFor();
  await page.getByText('Nothing has run yet.').waitFor();
  await page.getByText('comes with Gantry').first().waitFor({ state: 'attached' });

  // A machine that is busy with something else may be late once, not always.
  const loads = [];
  for (let visit = 0; visit < 5 && !(loads.at(-1)?.firstPaint < FIRST_PAINT_MS); visit += 1) {
    loads.push(await dashboard.firstVisit());
  }
  const loaded = loads.at(-1);
  const compressed = loaded.files.reduce((sum, file) => sum + file.compressed, 0);
  const plain = loaded.files.reduce((sum, file) => sum + file.plain, 0);
  measured.page = { compressed_bytes: compressed, plain_bytes: plain, first_paint_ms: loaded.firstPaint, visits: loads.length, files: loaded.files };
  assert.equal(loaded.files.length, 3);
  assert.ok(compressed < MOST_BYTES && compressed < plain / 2, `${compressed} of ${plain} bytes`);
  assert.ok(loaded.firstPaint < FIRST_PAINT_MS, `first paint after ${loaded.firstPaint} ms`);
});

scenario('shows loaded models in the right place with the right bytes', async ({ page }) => {
  // A first run that streams nothing tells how fast the device is, so that predictions are worth comparing.
  await finish(await submit(prompt({ steps: 8, allocation: 'sim:0,100%' })));
  await dashboard.waitForModels([FLUX, CLIP, T5, VAE]);
  await empty();
  await finish(await submit(prompt({ steps: 4 })));
  await dashboard.waitForModels([FLUX, CLIP, T5, VAE]);
  const models = await modelsByName();
  const devices = ['cpu', 'sim:0', 'sim:1'];
  for (const device of devices) {
    const wanted = Object.entries(models).filter(([, model]) => model.bytes[device] > 0);
    const shown = await waitFor(async () => {
      const held = await dashboard.held(device);
      return Object.keys(held).length === wanted.length && held;
    });
    assert.deepEqual(shown, Object.fromEntries(wanted.map(([name, model]) => [name, model.bytes[device]])), device);
    const { used_bytes } = await deviceOf(device);
    const isShown = await waitFor(async () => (await dashboard.figure(device, 'used')) === used_bytes);
    assert.ok(isShown, `${device}: ${await dashboard.figure(device, 'used')} is shown, ${used_bytes} are in use`);
  }
  assert.deepEqual(Object.keys(models[CLIP].bytes), ['sim:1'], 'the text encoders are where their loader said');
  assert.deepEqual(Object.keys(models[VAE].bytes), ['sim:0'], 'the autoencoder is where its loader said');

  // What was asked for, to within one block; what the page says is what was asked for.
  const { blocks, ring } = models[FLUX].plan;
  const largest = Math.max(...blocks.map((block) => block.bytes));
  const weights = (home) => blocks.filter((block) => block.home === home).reduce((sum, block) => sum + block.bytes, 0);
  assert.ok(Math.abs(weights('sim:0') - 2 * MIB) <= largest, `${weights('sim:0')} on sim:0`);
  assert.ok(Math.abs(weights('sim:1') - 1 * MIB) <= largest, `${weights('sim:1')} on sim:1`);
  assert.ok(weights('cpu') > 0 && ring.slots > 0, 'the rest is streamed');
  assert.equal((await dashboard.held('sim:1'))[FLUX], weights('sim:1'));
  assert.equal((await dashboard.held('sim:0'))[FLUX], weights('sim:0') + ring.slots * ring.slot_bytes);
  assert.equal((await dashboard.held('cpu'))[FLUX], weights('cpu'));

  // Block by block: a cell for every block on its device, and a table.
  assert.equal(await dashboard.device('sim:0').locator('.blocks .ring').count(), ring.slots);
  const onSim1 = blocks.filter((block) => block.home === 'sim:1').length;
  assert.equal(await dashboard.device('sim:1').locator(`.blocks [title^="${FLUX}"]`).count(), onSim1);
  await dashboard.model(FLUX).locator('summary').click();
  await waitForCount(dashboard.model(FLUX).locator('tbody tr'), blocks.length);
  const row = dashboard.model(FLUX).locator('tbody tr').filter({ hasText: 'single_blocks.3' });
  const block = blocks.find((one) => one.name === 'single_blocks.3');
  await row.getByText(block.home, { exact: true }).first().waitFor();
  await row.getByText(block.mode, { exact: true }).waitFor();
  await dashboard.model(FLUX).locator('summary').click();
  await page.getByRole('heading', { name: 'Latest job' }).waitFor();
});

scenario('keeps one, and exactly the others leave', async ({ page }) => {
  for (const model of Object.values(await modelsByName())) assert.equal(model.retention, 'default', model.name);
  await dashboard.model(VAE).getByRole('radio', { name: 'keep' }).check();
  assert.ok(await waitFor(async () => (await modelsByName())[VAE].retention === 'keep'));
  const bytes = (await modelsByName())[VAE].bytes['sim:0'];

  await page.getByRole('button', { name: 'Unload models' }).click();
  await dashboard.waitForModels([VAE]);
  const told = page.locator('.free output');
  await told.getByText('3 left').waitFor();
  const left = await told.locator('[data-left]').getAttribute('data-left');
  assert.deepEqual(left.split(',').sort(), [CLIP, FLUX, T5].sort());
  await told.getByText(`${VAE} stayed: it is to be kept.`).waitFor();
  assert.ok(await waitFor(async () => (await dashboard.figure('sim:0', 'used')) === bytes), 'only its bytes are left');
  assert.equal(await dashboard.figure('sim:1', 'used'), 0);
  assert.deepEqual(await dashboard.held('sim:1'), {});
  for (const phase of ['free: before', 'free: models unloaded', 'free: executor reset', 'free: caches emptied']) {
    await page.locator('.phases').getByText(phase).first().waitFor();
  }
});

scenario('lets one go first, ejects one, and forces the last', async ({ page }) => {
  await finish(await submit(prompt({ steps: 4, seed: 2 })));
  await dashboard.waitForModels([FLUX, CLIP, T5, VAE]);
  // With the keyboard: from "default" one to the right.
  const marked = dashboard.model(FLUX).getByRole('radio', { name: 'default' });
  await marked.focus();
  await page.keyboard.press('ArrowRight');
  assert.ok(await waitFor(async () => (await modelsByName())[FLUX].retention === 'eject'));
  await page.getByRole('button', { name: 'Free models and node cache' }).click();
  await dashboard.waitForModels([CLIP, T5, VAE]);
  await page.locator('.free output').getByText(`${T5} stayed: it was not marked, and others were marked to go first.`).waitFor();

  await dashboard.model(T5).getByRole('button', { name: `Unload ${T5} now` }).press('Enter');
  await dashboard.waitForModels([CLIP, VAE]);

  const force = page.getByLabel('force: kept ones too');
  await force.check();
  await page.getByRole('button', { name: 'Unload models' }).click();
  await dashboard.waitForModels([]);
  assert.ok(await waitFor(async () => (await dashboard.figure('sim:0', 'used')) === 0));
  await force.uncheck();
});

scenario('plans: an error at its character, then a plan', async ({ page }) => {
  const bad = 'sim:0,2mb;sim:1,1xb;cpu,*';
  await dashboard.allocation().fill(bad);
  const mark = page.locator('.place mark');
  await mark.waitFor();
  assert.equal(await mark.textContent(), 'xb');
  const start = Number(await mark.getAttribute('data-start'));
  assert.equal(bad.slice(start, Number(await mark.getAttribute('data-end'))), 'xb');
  await page.locator('.place').getByText("'xb' is not a unit").waitFor();
  assert.equal(await dashboard.allocation().getAttribute('aria-invalid'), 'true');
  assert.equal(await page.locator('[data-plan]').count(), 0, 'a wrong text has no plan');
  await page.getByRole('button', { name: `at character ${start + 1}` }).click();
  const selected = await dashboard.allocation().evaluate((field) => field.value.slice(field.selectionStart, field.selectionEnd));
  assert.equal(selected, 'xb', 'the place is selected in the field');
  await dashboard.screenshot('dashboard-wrong-allocation');

  await dashboard.allocation().fill('sim:0,2mb;sim:7,1mb');
  await page.locator('.place').getByText('available: cpu, sim:0, sim:1').waitFor();
  assert.equal(await mark.textContent(), 'sim:7');

  await dashboard.allocation().fill(ALLOCATION);
  await page.locator('[data-plan="sim:0"]').waitFor();
  assert.equal(await page.locator('.place').count(), 0);
  const plan = await postJson('/gantry/plan', { file: FLUX, alloc: ALLOCATION, size: '128x128' });
  for (const use of plan.devices) {
    const shown = await page.locator(`[data-use="${use.device}"]`).getAttribute('data-weights');
    assert.equal(Number(shown), use.weight_bytes, use.device);
  }
  const seconds = Number(await page.locator('[data-seconds]').getAttribute('data-seconds'));
  assert.equal(seconds, plan.prediction.seconds_per_step, 'speeds that were measured are kept');
});

scenario('plans by dragging and by keys, and copies the text', async ({ page }) => {
  const handle = page.getByRole('slider', { name: 'Between sim:0 and sim:1' });
  await handle.focus();
  const before_ = Number(await handle.getAttribute('aria-valuenow'));
  await page.keyboard.press('ArrowLeft');
  assert.equal(Number(await handle.getAttribute('aria-valuenow')), before_ - 1);
  assert.match(await dashboard.allocation().inputValue(), new RegExp(`^sim:0,${before_ - 1}%;sim:1,`));

  const bar = await page.locator('.split .bar').boundingBox();
  const at = await handle.boundingBox();
  await page.mouse.move(at.x + at.width / 2, at.y + at.height / 2);
  await page.mouse.down();
  await page.mouse.move(bar.x + bar.width * 0.25, bar.y + 10, { steps: 5 });
  await page.mouse.up();
  const text = await dashboard.allocation().inputValue();
  assert.match(text, /^sim:0,25%;sim:1,\d+%;cpu,\d+%$/);
  const shares = [...text.matchAll(/,(\d+)%/g)].map(([, share]) => Number(share));
  assert.equal(shares.reduce((sum, share) => sum + share, 0), 100);

  // The plan follows, honoured to within one block.
  const planned = await postJson('/gantry/plan', { file: FLUX, alloc: text });
  const onSim0 = planned.devices.find((use) => use.device === 'sim:0').weight_bytes;
  const isShown = await waitFor(async () => {
    const shown = await page.locator('[data-use="sim:0"]').getAttribute('data-weights');
    return Number(shown) === onSim0;
  });
  assert.ok(isShown, 'the plan is that of the text');

  await page.getByRole('button', { name: 'Copy' }).click();
  await page.getByRole('button', { name: 'Copied' }).waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), text);
  // What was copied is good for a loader.
  await finish(await submit(prompt({ steps: 2, seed: 3, allocation: text })));
  const { plan } = (await modelsByName())[FLUX];
  assert.equal(plan.devices.find((use) => use.device === 'sim:0').weight_bytes, onSim0, 'the loader does as was planned');
  await empty();
});

scenario('follows a running job', async ({ page }) => {
  const id = await submit(prompt({ steps: MANY, seed: 4 }));
  const bar = page.getByRole('progressbar', { name: 'KSampler, node 7' });
  assert.ok(await waitFor(async () => (await bar.count()) === 1 && (await bar.getAttribute('aria-valuemax')) === String(MANY)));
  assert.equal(await page.locator('[data-prompt]').getAttribute('data-prompt'), id);
  const first = Number(await bar.getAttribute('aria-valuenow'));
  const later = await waitFor(async () => {
    const now = Number(await bar.getAttribute('aria-valuenow'));
    return now > first && now;
  });
  assert.ok(later > first, `${first}, then ${later}`);

  await dashboard.model(VAE).getByRole('radio', { name: 'keep' }).check();
  await dashboard.model(FLUX).getByRole('radio', { name: 'eject' }).check();
  const earlier = await running();
  const row = page.locator(`[data-run="${FLUX}"]`);
  const shown = Number(await row.locator('[data-predicted]').getAttribute('data-predicted'));
  assert.equal(shown, earlier.models.find((model) => model.name === FLUX).predicted_seconds_per_step);
  const took = await row.locator('[data-measured]').getAttribute('data-measured');
  measured.job = { predicted_seconds_per_step: shown, measured_seconds_per_step: Number(took) };
  const ratio = Number(took) / earlier.models.find((model) => model.name === FLUX).measured_seconds_per_step;
  assert.ok(ratio > 0.5 && ratio < 2, `the page says ${took} s per step`);
  await page.getByText('Latest step of').waitFor();
  for (const kind of ['compute', 'copy', 'stall']) await page.locator(`[data-profile="${kind}"]`).waitFor();
  const { profile } = (await modelsByName())[FLUX];
  assert.ok(profile.blocks.some((block) => block.copied_bytes > 0), 'streamed blocks are copied');
  assert.ok(profile.blocks.every((block) => block.compute_s > 0), 'every block computes');

  for (const scheme of ['light', 'dark']) {
    await page.emulateMedia({ colorScheme: scheme });
    for (const width of [400, 800, 1600]) {
      await page.setViewportSize({ width, height: 1000 });
      await page.locator('[data-device="sim:0"] .blocks').waitFor();
      assert.ok(await dashboard.fitsInWidth(), `nothing is cut at ${width} pixels`);
      const file = await dashboard.screenshot(`dashboard-${width}-${scheme}`);
      if (pictures && width === 1600 && scheme === 'light') fs.copyFileSync(file, path.join(pictures, 'dashboard.png'));
    }
  }
  await page.emulateMedia({ colorScheme: 'light' });
  assert.ok((await running()) !== null, 'the job still runs: the pictures show it');
  await post('/interrupt', {});
  await page.getByText('Nothing runs now.').waitFor();
});

scenario('shows what waits and what is made, cancels, and tells what failed', async ({ page }) => {
  const long = await submit(prompt({ steps: MANY, seed: 6 }));
  const [second, third] = [await submit(prompt({ steps: MANY, seed: 7 })), await submit(prompt({ steps: 2, seed: 8 }))];
  await waitForCount(page.locator('[data-waiting]'), 2);
  assert.equal(await page.locator('[data-waiting]').first().getAttribute('data-waiting'), second, 'the next one is first');
  const picture = page.getByRole('img', { name: 'What is being made' });
  await picture.waitFor();
  assert.ok(await waitFor(() => picture.evaluate((image) => image.naturalWidth > 0)), 'the picture is one');
  await dashboard.screenshot('dashboard-queue');

  await page.getByRole('button', { name: `Cancel job ${second.slice(0, 8)}` }).click();
  await waitForCount(page.locator('[data-waiting]'), 1);
  await page.getByRole('button', { name: 'Cancel the running job' }).click();
  await finish(third);
  const stopped = (await getJson(`/api/jobs/${long}`)).status;
  assert.equal(stopped, 'cancelled');
  assert.equal((await fetch(new URL(`/api/jobs/${second}`, url))).status, 404, 'what never ran leaves no record');

  const failing = await submit(prompt({ steps: 2, seed: 9, allocation: 'sim:9,1mb' }));
  const error = page.locator(`[data-error="${failing}"]`);
  await error.waitFor();
  await error.getByText('sim:9').first().waitFor();

  // One scale per strip: that of the bar above it.
  for (const id of ['sim:0', 'sim:1']) {
    const { budget_bytes } = await deviceOf(id);
    const top = page.locator('.lane').filter({ hasText: id }).locator('[data-top]');
    assert.equal(Number(await top.getAttribute('data-top')), budget_bytes, id);
  }
  // A plan goes to whoever has a workflow open; nobody has.
  await dashboard.allocation().fill(ALLOCATION);
  await page.getByRole('button', { name: 'Send to the open workflow' }).click();
  await page.getByText('No front end is open.').waitFor();
});

scenario('costs a running job next to nothing, and nothing when nobody looks', async ({ page }) => {
  const id = await submit(prompt({ steps: VERY_MANY, seed: 5 }));
  await page.getByRole('progressbar', { name: 'KSampler, node 7' }).waitFor();
  await dashboard.setVisible(false);
  await pause(1500);
  const askedBefore = dashboard.asked.length;
  const without = await cpuUse(serverPid, WATCHED_MS);
  assert.equal(dashboard.asked.length, askedBefore, 'a page that nobody sees asks nothing');

  await dashboard.setVisible(true);
  await pause(1500);
  const [session, asked] = [await page.context().newCDPSession(page), dashboard.asked.length];
  // Time on a processor, not on the clock: the job leaves the page little of it.
  await session.send('Performance.enable', { timeDomain: 'threadTicks' });
  const task = await taskSeconds(session);
  const with_ = await cpuUse(serverPid, WATCHED_MS);
  const own = ((await taskSeconds(session)) - task) / (WATCHED_MS / 1000);
  const requests = dashboard.asked.length - asked;
  assert.ok(requests >= 3, `${requests} requests while it is seen`);
  assert.equal((await running())?.prompt_id, id, 'the job ran all the while');
  await post('/interrupt', {});
  await page.getByText('Nothing runs now.').waitFor();

  const added = (with_.server ?? 0) - (without.server ?? 0);
  measured.load = {
    how: 'processor seconds per second of the threads that answer requests, a job running all the while, from /proc/PID/task/*/schedstat',
    watched_ms: WATCHED_MS,
    requests_per_second: requests / (WATCHED_MS / 1000),
    serving_without_page: without.server ?? 0,
    serving_with_page: with_.server ?? 0,
    added,
    all_threads_without_page: all(without),
    all_threads_with_page: all(with_),
    browser_main_thread: own,
  };
  assert.ok(with_.server > 0, `the threads that answer are known by their name: ${Object.keys(with_)}`);
  assert.ok(added < MOST_LOAD, `${added} processor seconds per second`);
  assert.ok(own < MOST_OWN_LOAD, `${own} processor seconds per second in the browser`);
});

scenario('can be used with the keyboard', async ({ page }) => {
  await dashboard.waitForModels([FLUX, CLIP, T5, VAE]);
  await page.evaluate(() => document.activeElement?.blur());
  const reached = new Set();
  for (let presses = 0; presses < 80; presses += 1) {
    await page.keyboard.press('Tab');
    const focused = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      // The switch draws the outline around its words.
      const drawn = element.type === 'radio' ? element.nextElementSibling : element;
      return { name: element.getAttribute('aria-label') ?? element.id ?? '', text: element.textContent, outline: getComputedStyle(drawn).outlineStyle };
    });
    // From the end of the page the focus goes through the browser itself to its start.
    if (!focused) continue;
    assert.notEqual(focused.outline, 'none', `the focus is seen on ${focused.name || focused.text}`);
    reached.add(focused.name || focused.text);
  }
  for (const name of ['Unload models', `Unload ${FLUX} now`, 'allocation', 'Between sim:0 and sim:1', 'Copy']) {
    assert.ok(reached.has(name), `${name} is reached: ${[...reached].join(', ')}`);
  }
});

test('asks nothing of anyone but the server', () => {
  assert.deepEqual(dashboard.foreign, []);
});

/** A test that keeps a picture when it fails, and that fails if the console had an error meanwhile. */
function scenario(name, steps) {
  test(name, { timeout: 4 * PATIENCE_MS }, async () => {
    try {
      await steps(dashboard);
      assert.deepEqual(dashboard.faults, [], 'the console has no errors');
    } catch (error) {
      await dashboard.screenshot(`FAILED-dashboard-${name.replaceAll(/[^a-z0-9]+/gi, '-')}`);
      throw error;
    } finally {
      dashboard.faults.length = 0;
    }
  });
}

/** A text-to-image prompt on the demo model, its parts on both simulated devices. No loader says what is to be kept. */
function prompt({ steps, seed = 1, allocation = ALLOCATION }) {
  const node = (class_type, inputs) => ({ class_type, inputs });
  return {
    1: node('UNETLoaderDisTorch2MultiGPU', {
      unet_name: FLUX,
      weight_dtype: 'default',
      compute_device: 'sim:0',
      virtual_vram_gb: 0,
      donor_device: 'cpu',
      expert_mode_allocations: allocation,
      eject_models: false,
    }),
    2: node('DualCLIPLoaderMultiGPU', { clip_name1: CLIP, clip_name2: T5, type: 'flux', device: 'sim:1' }),
    3: node('VAELoaderMultiGPU', { vae_name: VAE, device: 'sim:0' }),
    4: node('EmptySD3LatentImage', { width: 128, height: 128, batch_size: 1 }),
    5: node('CLIPTextEncode', { clip: ['2', 0], text: `a large red circle in the center, number ${seed}` }),
    6: node('ConditioningZeroOut', { conditioning: ['5', 0] }),
    7: node('KSampler', {
      model: ['1', 0],
      positive: ['5', 0],
      negative: ['6', 0],
      latent_image: ['4', 0],
      seed,
      steps,
      cfg: 1,
      sampler_name: 'euler',
      scheduler: 'simple',
      denoise: 1,
    }),
    8: node('VAEDecode', { samples: ['7', 0], vae: ['3', 0] }),
    9: node('SaveImage', { images: ['8', 0], filename_prefix: 'dashboard' }),
  };
}

/** Queues a prompt, which must be accepted, and gives its id. */
async function submit(graph) {
  const answer = await postJson('/prompt', { prompt: graph });
  assert.deepEqual(answer.node_errors, {});
  return answer.prompt_id;
}

/** Waits until a prompt has ended well. */
async function finish(id) {
  const ended = await waitFor(async () => (await getJson(`/history/${id}`))[id]);
  assert.equal(ended?.status.status_str, 'success', JSON.stringify(ended?.status));
}

/** Lets every model go, the kept ones too. */
async function empty() {
  await post('/free', { unload_models: true, free_memory: true, force: true });
  await dashboard.waitForModels([]);
}

async function running() {
  return (await getJson('/gantry/stats?jobs=0')).running;
}

async function modelsByName() {
  const { models } = await getJson('/gantry/models');
  return Object.fromEntries(models.map((model) => [model.name, model]));
}

async function deviceOf(id) {
  const { devices } = await getJson('/gantry/devices');
  return devices.find((device) => device.id === id);
}

function all(use) {
  return Object.values(use).reduce((sum, one) => sum + one, 0);
}

/** Seconds that the page's own thread has worked until now. */
async function taskSeconds(session) {
  const { metrics } = await session.send('Performance.getMetrics');
  return metrics.find((metric) => metric.name === 'TaskDuration').value;
}

async function waitForCount(locator, count) {
  assert.ok(await waitFor(async () => (await locator.count()) === count), `${await locator.count()} were there, not ${count}`);
}

async function getJson(place) {
  const response = await fetch(new URL(place, url));
  assert.equal(response.status, 200, place);
  return response.json();
}

async function post(place, body) {
  const response = await fetch(new URL(place, url), { method: 'POST', body: JSON.stringify(body) });
  assert.equal(response.status, 200, `${place}: ${response.status}`);
  return response;
}

async function postJson(place, body) {
  return (await post(place, body)).json();
}

function pause(milliseconds) {
  return new Promise((wake) => setTimeout(wake, milliseconds));
}

function needed(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: start this through run.sh`);
  return value;
}
