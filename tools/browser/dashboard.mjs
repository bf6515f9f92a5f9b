// The dashboard in a headless Chromium, with the hands and eyes that its tests need.

import fs from 'node:fs';
import path from 'node:path';
import { chromium } from 'playwright-core';
import { PATIENCE_MS, waitFor } from './page.mjs';

/** One page of the dashboard. */
export class Dashboard {
  /**
   * @param {{url: string, chromiumPath: string, screenshots: string}} options
   */
  static async launch(options) {
    const browser = await chromium.launch({ executablePath: options.chromiumPath });
    const context = await browser.newContext({ viewport: { width: 1600, height: 1000 } });
    await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: new URL(options.url).origin });
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    return new Dashboard(browser, page, options);
  }

  constructor(browser, page, { url, screenshots }) {
    this.browser = browser;
    this.page = page;
    this.url = url;
    this.screenshots = screenshots;
    /** Console errors and uncaught exceptions. */
    this.faults = [];
    /** Addresses that were asked for outside the server. */
    this.foreign = [];
    /** Addresses that were asked for. */
    this.asked = [];
    page.on('console', (message) => {
      if (message.type() === 'error') this.faults.push(`${message.text()} (${message.location().url})`);
    });
    page.on('pageerror', (error) => this.faults.push(`uncaught: ${error.stack ?? error.message}`));
    page.on('request', (request) => {
      const address = new URL(request.url());
      this.asked.push(address.pathname);
      if (/^(https?|wss?):$/.test(address.protocol) && address.host !== new URL(url).host) this.foreign.push(request.url());
    });
  }

  async open() {
    await this.page.goto(new URL('gantry', this.url).href);
    await this.page.locator('main').waitFor();
  }

  async close() {
    await this.browser.close();
  }

  /** Opens the page as one who was never here: what came, and after how many milliseconds something was seen. */
  async firstVisit() {
    const context = await this.browser.newContext({ viewport: { width: 1600, height: 1000 } });
    const page = await context.newPage();
    await page.goto(new URL('gantry/', this.url).href);
    await page.locator('main').waitFor();
    const seen = await page.evaluate(() => {
      const [paint] = performance.getEntriesByName('first-contentful-paint');
      const [html] = performance.getEntriesByType('navigation');
      const parts = performance.getEntriesByType('resource').filter((entry) => /\.(js|css)$/.test(entry.name));
      const files = [html, ...parts].map((entry) => ({
        name: new URL(entry.name).pathname,
        compressed: entry.encodedBodySize,
        plain: entry.decodedBodySize,
      }));
      return { firstPaint: paint.startTime, files };
    });
    await context.close();
    return seen;
  }

  device(id) {
    return this.page.locator(`[data-device="${id}"]`);
  }

  /** A loaded model in the list of models. */
  model(name) {
    return this.page.locator(`[data-model="${name}"]`);
  }

  async modelNames() {
    const names = await this.page.locator('[data-model]').evaluateAll((rows) => rows.map((row) => row.dataset.model));
    return names.sort();
  }

  /** Waits until exactly these models are in the list. */
  async waitForModels(names) {
    const wanted = names.toSorted().join();
    const found = await waitFor(async () => (await this.modelNames()).join() === wanted);
    if (!found) throw new Error(`the page shows ${await this.modelNames()}, not ${wanted}`);
  }

  /** What stands under a name in a device's figures, in bytes: the title has every one of them. */
  async figure(device, name) {
    return exactBytes(this.device(device).locator(`[data-figure="${name}"] .number`));
  }

  /** The bytes of each model that a device's bar shows, by name. */
  async held(device) {
    const rows = await this.device(device).locator('[data-held]').all();
    const pairs = rows.map(async (row) => [await row.getAttribute('data-held'), await exactBytes(row.locator('.number').first())]);
    return Object.fromEntries(await Promise.all(pairs));
  }

  allocation() {
    return this.page.getByLabel('Allocation', { exact: true });
  }

  /** Whether all of the page is as wide as the window: nothing is cut and nothing must be moved into sight. */
  async fitsInWidth() {
    return this.page.evaluate(() => document.documentElement.scrollWidth <= document.documentElement.clientWidth);
  }

  /** Keeps a picture of the whole page. */
  async screenshot(name) {
    const file = path.join(this.screenshots, `${name}.png`);
    await this.page.screenshot({ path: file, fullPage: true });
    return file;
  }

  /** Makes the page believe that nobody can see it, or that someone can again. */
  async setVisible(isVisible) {
    await this.page.evaluate((state) => {
      Object.defineProperty(document, 'visibilityState', { configurable: true, get: () => state });
      document.dispatchEvent(new Event('visibilitychange'));
    }, isVisible ? 'visible' : 'hidden');
  }
}

/** The bytes that an element's title says. */
async function exactBytes(element) {
  const title = await element.getAttribute('title');
  return Number(title.replaceAll(/[^0-9]/g, ''));
}

/**
 * Processor seconds per second of a process while some time passes, by the names of its threads. The system counts
 * nanoseconds for each thread. The job computes in other threads than those that answer requests, so the two do not mix.
 * Threads come and go; what one that ended had used was looked at shortly before.
 */
export async function cpuUse(pid, milliseconds) {
  const [start, latest] = [readThreads(pid), new Map()];
  const begin = performance.now();
  while (performance.now() - begin < milliseconds) {
    await new Promise((wake) => setTimeout(wake, 100));
    for (const [id, thread] of readThreads(pid)) latest.set(id, thread);
  }
  const elapsed = (performance.now() - begin) / 1e3;
  const use = {};
  for (const [id, { name, seconds }] of latest) {
    use[name] = (use[name] ?? 0) + (seconds - (start.get(id)?.seconds ?? 0)) / elapsed;
  }
  return use;
}

function readThreads(pid) {
  const threads = new Map();
  for (const id of fs.readdirSync(`/proc/${pid}/task`)) {
    try {
      const name = fs.readFileSync(`/proc/${pid}/task/${id}/comm`, 'utf8').trim();
      const [nanoseconds] = fs.readFileSync(`/proc/${pid}/task/${id}/schedstat`, 'utf8').split(' ');
      threads.set(id, { name, seconds: Number(nanoseconds) / 1e9 });
    } catch {
      // It ended meanwhile.
    }
  }
  return threads;
}
