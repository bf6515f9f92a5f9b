// The official front end in a headless Chromium, with the hands and eyes that the tests need: opening it, pressing what
// a person presses, and a record of everything that came over the wire or went to the console.

import path from 'node:path';
import { chromium } from 'playwright-core';

/** How long anything on the page may take. Generous: a build machine has few cores, and the model runs on them too. */
export const PATIENCE_MS = 60_000;

/** Lines of the console that are not faults, each with the reason why. Everything else fails the test. */
const HARMLESS = [
  {
    reason: 'the front end lists the workflows and subgraphs of the user, and takes 404 for none; ComfyUI says 404 too',
    url: /\/api\/userdata\?dir=(workflows|subgraphs)&/,
    text: /status of 404/,
  },
  {
    reason: 'the front end asks for the style sheet of the user, which a fresh install does not have; ComfyUI says 404 too',
    url: /\/user\.css$/,
    text: /status of 404/,
  },
  {
    reason: 'the front end asks for the node templates of the user, which a fresh install does not have; ComfyUI says 404 too',
    url: /\/api\/userdata\/comfy\.templates\.json$/,
    text: /status of 404/,
  },
  {
    reason: 'the front end asks for the bookmarks among the workflows, which nobody has set; ComfyUI says 404 too',
    url: /\/api\/userdata\/workflows%2F\.index\.json$/,
    text: /status of 404/,
  },
  {
    reason: 'on a busy machine the front end asks for a dropped picture before its upload has ended; the test looks at what it shows then',
    url: /\/api\/view\?type=input&filename=dropped\.png&/,
    text: /status of 404/,
  },
];

/** One page of the front end. */
export class FrontEnd {
  /**
   * @param {{url: string, chromiumPath: string, screenshots: string}} options
   */
  static async launch(options) {
    const browser = await chromium.launch({ executablePath: options.chromiumPath });
    const context = await browser.newContext({ viewport: { width: 1600, height: 1000 } });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    return new FrontEnd(browser, page, options);
  }

  constructor(browser, page, { url, screenshots }) {
    this.browser = browser;
    this.page = page;
    this.url = url;
    this.screenshots = screenshots;
    this.pictures = 0;
    /** Console errors and uncaught exceptions that `HARMLESS` does not name. */
    this.faults = [];
    /** Addresses that were asked for outside the server. */
    this.foreign = [];
    /** Everything that came over the WebSocket, in order: `{type, data}`, or `{type: 'binary', code, meta, image}`. */
    this.frames = [];
    this.#listen();
  }

  #listen() {
    this.page.on('console', (message) => {
      if (message.type() !== 'error') return;
      const from = message.location().url;
      const text = message.text();
      if (!HARMLESS.some((known) => known.url.test(from) && known.text.test(text))) {
        this.faults.push(`${text} (${from})`);
      }
    });
    this.page.on('pageerror', (error) => this.faults.push(`uncaught: ${error.stack ?? error.message}`));
    this.page.on('request', (request) => {
      const address = request.url();
      if (/^(https?|wss?):/.test(address) && new URL(address).host !== new URL(this.url).host) this.foreign.push(address);
    });
    // File dialogs are kept from the screen from the start on: asked for only when one is about to open, that may come too late.
    this.page.on('filechooser', () => {});
    this.page.on('websocket', (socket) => {
      socket.on('framereceived', ({ payload }) => this.frames.push(readFrame(payload)));
    });
  }

  /** Opens the front end and waits until it can be used. */
  async open() {
    await this.page.goto(this.url);
    await this.runButton().waitFor();
    await this.page.getByTestId('app-loading-overlay').waitFor({ state: 'hidden' });
  }

  async close() {
    await this.browser.close();
  }

  /** Keeps a picture of the page under a numbered name. */
  async screenshot(name) {
    this.pictures += 1;
    const file = `${String(this.pictures).padStart(2, '0')}-${name}.png`;
    await this.page.screenshot({ path: path.join(this.screenshots, file) });
  }

  runButton() {
    return this.page.getByTestId('queue-button');
  }

  /** A node as the front end draws it with "Nodes 2.0" on. */
  node(id) {
    return this.page.locator(`[data-node-id="${id}"]`);
  }

  /** Opens a workflow file as a person does: Ctrl+O, and the file in the dialog. */
  async openWorkflowFile(file) {
    const [chooser] = await Promise.all([this.page.waitForEvent('filechooser'), this.page.keyboard.press('Control+o')]);
    await chooser.setFiles(file);
    await this.waitForWorkflow(path.basename(file, '.json'));
  }

  /** Waits until the workflow of that name is in front; the title of the page says which one is. */
  async waitForWorkflow(name) {
    await this.page.waitForFunction((wanted) => document.title.replace(/^\*/, '') === `${wanted} - ComfyUI`, name);
  }

  tab(name) {
    return this.page.getByTestId('workflow-tab').filter({ hasText: name });
  }

  /** Presses Run and gives what the server answered. */
  async run() {
    const posted = this.page.waitForResponse((r) => r.url().endsWith('/api/prompt') && r.request().method() === 'POST');
    await this.runButton().click();
    const response = await posted;
    return { status: response.status(), body: await response.json() };
  }

  /** Opens the main menu and presses the entry at the end of the path, such as `['Edit', 'Unload Models']`. */
  async pressMenu(...entries) {
    await this.page.getByTestId('comfy-menu-button').click();
    for (const [depth, entry] of entries.entries()) {
      const item = this.page.getByRole('menuitem', { name: entry, exact: true });
      await (depth === entries.length - 1 ? item.click() : item.hover());
    }
  }

  /** The list of jobs, opened if it is not. */
  async jobList() {
    const list = this.page.getByTestId('job-assets-list');
    if (!(await list.isVisible())) await this.page.getByTestId('queue-overlay-toggle').click();
    await list.waitFor();
    return list;
  }

  /** The frames of one prompt. */
  framesOf(promptId) {
    return this.frames.filter((frame) => (frame.meta ?? frame.data)?.prompt_id === promptId);
  }

  /** Waits until a frame of that prompt satisfies the condition, and gives it. */
  async waitForFrame(promptId, condition) {
    const found = await waitFor(() => this.framesOf(promptId).find(condition));
    if (found) return found;
    const came = new Set(this.framesOf(promptId).map((frame) => frame.type));
    throw new Error(`the awaited frame of ${promptId} did not come; what came: ${[...came].join(', ')}`);
  }

  /** The colour of one point of a picture that the page shows, its place given as fractions of width and height. */
  async colourIn(image, x, y) {
    return image.evaluate(
      async (element, at) => {
        await element.decode();
        const canvas = document.createElement('canvas');
        canvas.width = element.naturalWidth;
        canvas.height = element.naturalHeight;
        const pen = canvas.getContext('2d');
        pen.drawImage(element, 0, 0);
        const place = [Math.floor(at.x * (canvas.width - 1)), Math.floor(at.y * (canvas.height - 1))];
        const [red, green, blue] = pen.getImageData(...place, 1, 1).data;
        return { red, green, blue };
      },
      { x, y },
    );
  }
}

/** Asks again and again until the answer is something, and gives it; nothing if patience ends before. */
export async function waitFor(question) {
  for (const until = Date.now() + PATIENCE_MS; Date.now() < until; ) {
    const answer = await question();
    if (answer) return answer;
    await new Promise((wake) => setTimeout(wake, 20));
  }
  return undefined;
}

/** Turns a WebSocket payload into what it means; the layout of previews is a code, a length, JSON and the picture. */
function readFrame(payload) {
  if (typeof payload === 'string') return JSON.parse(payload);
  const code = payload.readUInt32BE(0);
  if (code !== 4) return { type: 'binary', code };
  const end = 8 + payload.readUInt32BE(4);
  return { type: 'binary', code, meta: JSON.parse(payload.toString('utf8', 8, end)), image: payload.subarray(end) };
}
