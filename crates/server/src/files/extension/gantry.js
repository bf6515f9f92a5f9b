// Gantry in the web front end: a sidebar tab with the memory of every device, what each loaded model is to do when memory is
// asked for, and the two buttons; and on loaders that place weights, a line that shows the plan while one types.

import { app } from '../../scripts/app.js';
import { api } from '../../scripts/api.js';

const GIB = 1024 ** 3;
const LOOK_MS = 1000;
const TYPING_MS = 400;

/** The inputs of a loader that name its file, and the kind of folder that it lies in. */
const FILE_INPUTS = {
  unet_name: undefined,
  ckpt_name: 'checkpoints',
  vae_name: 'vae',
  clip_name: 'text_encoders',
};
/** The inputs that say where weights go. */
const PLACE_INPUTS = ['virtual_vram_gb', 'donor_device', 'expert_mode_allocations', 'compute_device', 'device'];
/** The name of the line that shows a plan. */
const PLAN = 'gantry_plan';

const gib = (bytes) => `${(bytes / GIB).toFixed(bytes < 10 * GIB ? 2 : 1)} GiB`;

/** An element with attributes, properties and children. */
function make(tag, options = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, options);
  element.append(...children);
  return element;
}

async function ask(path, options) {
  const answer = await api.fetchApi(path, options);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.status === 204 ? null : answer.json().catch(() => null);
}

const send = (method, body) => ({
  method,
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(body),
});

function deviceRow(device) {
  const share = Math.min(1, device.used_bytes / Math.max(1, device.budget_bytes));
  const bar = make('div', { className: 'gantry-bar' }, make('div', { className: 'gantry-used' }));
  bar.firstChild.style.width = `${(share * 100).toFixed(1)}%`;
  const text = `${gib(device.used_bytes)} of ${gib(device.budget_bytes)}`;
  const row = make('div', { className: 'gantry-device' }, make('div', {}, `${device.id}  `, make('small', {}, text)), bar);
  row.dataset.device = device.id;
  row.dataset.usedBytes = device.used_bytes;
  return row;
}

function modelRow(model, changed) {
  const choice = make('select', { title: 'What this model does when models are asked to leave' });
  for (const value of ['default', 'keep', 'eject']) {
    choice.append(make('option', { value, textContent: value, selected: value === model.retention }));
  }
  choice.addEventListener('change', async () => {
    await ask(`/gantry/models/${model.id}`, send('PATCH', { retention: choice.value }));
    changed();
  });
  const where = Object.entries(model.bytes ?? {}).map(([device, bytes]) => `${device} ${gib(bytes)}`);
  const about = make('div', {}, model.name, make('br'), make('small', {}, where.join(', ') || 'not on a device'));
  const row = make('div', { className: 'gantry-model' }, about, choice);
  row.dataset.model = model.name;
  return row;
}

/** The sidebar tab: drawn once, filled again every second while it is shown. */
function showTab(element) {
  element.replaceChildren();
  const style = make('style', {
    textContent: `
      .gantry-tab { padding: 12px; display: flex; flex-direction: column; gap: 12px; font-size: 13px; overflow: auto; height: 100%; }
      .gantry-bar { height: 8px; border-radius: 4px; background: rgba(127,127,127,.25); overflow: hidden; margin-top: 4px; }
      .gantry-used { height: 100%; background: #4f9d69; }
      .gantry-model { display: flex; justify-content: space-between; gap: 8px; align-items: center; overflow-wrap: anywhere; }
      .gantry-tab button, .gantry-tab select { padding: 4px 8px; }
      .gantry-tab .gantry-error { color: #c0564a; }`,
  });
  const [devices, models, error] = [make('div'), make('div'), make('div', { className: 'gantry-error' })];
  const free = (label, body) =>
    make('button', {
      textContent: label,
      onclick: () => ask('/free', send('POST', body)).then(look, (reason) => (error.textContent = reason.message)),
    });
  const buttons = make(
    'div',
    {},
    free('Unload models', { unload_models: true }),
    ' ',
    free('Free memory', { unload_models: true, free_memory: true }),
  );
  const link = make('a', { href: api.fileURL('/gantry/'), target: '_blank', textContent: 'Open the dashboard' });
  const tab = make('div', { className: 'gantry-tab' }, style, devices, models, buttons, link, error);
  element.append(tab);
  let shown = '';
  async function look() {
    try {
      const now = await ask('/gantry/now?jobs=0');
      error.textContent = '';
      devices.replaceChildren(...now.devices.map(deviceRow));
      // A list that did not change is left alone, so that a choice that is open stays open.
      const models_now = JSON.stringify(now.models.map((model) => [model.id, model.name, model.retention, model.bytes]));
      if (models_now !== shown) {
        shown = models_now;
        const rows = now.models.map((model) => modelRow(model, look));
        models.replaceChildren(...(rows.length ? rows : [make('small', {}, 'no model is loaded')]));
      }
    } catch (reason) {
      error.textContent = `no answer: ${reason.message}`;
    }
  }
  look();
  const timer = setInterval(() => (tab.isConnected ? look() : clearInterval(timer)), LOOK_MS);
}

/** What a loader asks for, as the planner takes it; nothing if it names no file. */
function question(node) {
  const value = (name) => node.widgets?.find((widget) => widget.name === name)?.value;
  const input = Object.keys(FILE_INPUTS).find((name) => value(name));
  if (!input) return null;
  const expert = String(value('expert_mode_allocations') ?? '').trim();
  const asked = { file: value(input) };
  if (FILE_INPUTS[input]) asked.folder = FILE_INPUTS[input];
  const compute = value('compute_device') ?? value('device');
  if (compute && compute !== 'default') asked.compute = compute;
  if (expert) {
    asked.alloc = expert;
  } else if (value('virtual_vram_gb') !== undefined) {
    asked.virtual_vram_gb = Number(value('virtual_vram_gb'));
    if (value('donor_device')) asked.donor = value('donor_device');
  }
  return asked;
}

/** A plan, or why there is none, in a line. */
function told(plan) {
  if (plan.error) {
    const { place } = plan;
    return place ? `character ${place.start + 1}: ${place.problem}; ${place.hint}` : plan.error;
  }
  const used = plan.devices.map((device) => `${device.device} ${gib(device.weight_bytes + device.ring_bytes)}`);
  const { known, seconds_per_step: seconds } = plan.prediction;
  return `${used.join(', ')}; ${known ? `about ${seconds.toPrecision(3)} s per step` : 'not measured yet'}`;
}

function addPlanLine(node) {
  if (!node.widgets?.some((widget) => widget.name === 'virtual_vram_gb' || widget.name === 'expert_mode_allocations')) return;
  const line = node.addWidget('text', PLAN, '', () => {}, { serialize: false });
  line.label = 'plan';
  line.disabled = true;
  line.serializeValue = () => undefined;
  let timer;
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      const asked = question(node);
      if (!asked) return;
      try {
        line.value = told(await ask('/gantry/plan?faults=200', send('POST', asked)));
      } catch (reason) {
        line.value = reason.message;
      }
      node.setDirtyCanvas?.(true);
    }, TYPING_MS);
  };
  for (const widget of node.widgets) {
    if (!PLACE_INPUTS.includes(widget.name) && !(widget.name in FILE_INPUTS)) continue;
    const before = widget.callback;
    widget.callback = function (...values) {
      refresh();
      return before?.apply(this, values);
    };
  }
  refresh();
}

/** Gives an allocation that was planned on the dashboard to every loader of its file that can place weights. */
function takePlan({ file, alloc, compute }) {
  let taken = 0;
  for (const node of app.graph?.nodes ?? []) {
    const widget = (name) => node.widgets?.find((one) => one.name === name);
    const holds = Object.keys(FILE_INPUTS).some((name) => widget(name)?.value === file);
    const place = widget('expert_mode_allocations');
    if (!holds || !place) continue;
    const set = (target, value) => {
      target.value = value;
      target.callback?.(value);
    };
    set(place, alloc);
    const computes = widget('compute_device') ?? widget('device');
    if (compute && computes) set(computes, compute);
    node.setDirtyCanvas?.(true, true);
    taken += 1;
  }
  app.extensionManager.toast.add({
    severity: taken ? 'success' : 'warn',
    summary: 'Gantry',
    detail: taken
      ? `${taken} ${taken === 1 ? 'loader has' : 'loaders have'} the plan for ${file}`
      : `no loader here can take a plan for ${file}; use one whose name ends with DisTorch2MultiGPU`,
    life: 5000,
  });
}

app.registerExtension({
  name: 'gantry.memory',
  async setup() {
    api.addEventListener('gantry_plan', ({ detail }) => takePlan(detail));
    app.extensionManager.registerSidebarTab({
      id: 'gantry',
      icon: 'pi pi-server',
      title: 'Gantry',
      tooltip: 'Gantry: memory and models',
      type: 'custom',
      render: showTab,
    });
  },
  nodeCreated(node) {
    // Values of a stored workflow come after the node.
    setTimeout(() => addPlanLine(node));
  },
});
