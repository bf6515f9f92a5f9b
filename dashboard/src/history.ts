// Memory over time: samples that the page takes while it is open, and the server's snapshots.

import type { Device, Model, Snapshot } from './wire.ts';

export interface Sample {
  at: number;
  used: Record<string, number>;
}

/** Something that happened to memory, and what was in use then. */
export interface Phase {
  key: string;
  at: number;
  label: string;
  used: Record<string, number>;
}

/** What the page compares from one answer to the next. */
interface Seen {
  models: Map<number, string>;
  jobs: string[];
}

/** How far back the page looks. */
export const WINDOW_MS = 10 * 60 * 1000;
/** The shortest stretch that is drawn. */
const SHORTEST_MS = 60 * 1000;
const PHASES = 200;

export class History {
  readonly samples: Sample[] = [];
  readonly snapshots: Snapshot[] = [];
  readonly #noticed: Phase[] = [];
  #seen: Seen | undefined;

  /** The number of the latest snapshot; the server is asked for those after it. */
  get latest(): number | undefined {
    return this.snapshots.at(-1)?.number;
  }

  sample(at: number, devices: Device[]): void {
    const used = Object.fromEntries(devices.map((device) => [device.id, device.used_bytes]));
    const [last, before] = [this.samples.at(-1), this.samples.at(-2)];
    // A level stretch needs its two ends only.
    if (last && before && same(last.used, used) && same(before.used, used)) last.at = at;
    else this.samples.push({ at, used });
    while (this.samples.length > 2 && (this.samples[1]?.at ?? at) < at - WINDOW_MS) this.samples.shift();
  }

  add(snapshots: Snapshot[]): void {
    this.snapshots.push(...snapshots);
    this.snapshots.splice(0, Math.max(0, this.snapshots.length - PHASES));
  }

  /** Notices models that came or left and jobs that began or ended. The server notes only what a free request does. */
  notice(at: number, devices: Device[], models: Model[], jobs: string[]): void {
    const staged = models.filter((model) => model.staged).map((model) => [model.id, model.name] as const);
    const [now, before] = [{ models: new Map(staged), jobs }, this.#seen];
    this.#seen = now;
    if (!before) return;
    const missing = (from: Map<number, string>, other: Map<number, string>): string =>
      [...from].filter(([id]) => !other.has(id)).map(([, name]) => name).join(', ');
    const [came, left] = [missing(now.models, before.models), missing(before.models, now.models)];
    const labels = [
      ...before.jobs.filter((job) => !jobs.includes(job)).map((job) => `job ${job.slice(0, 8)} ended`),
      left && `${left} left`,
      ...jobs.filter((job) => !before.jobs.includes(job)).map((job) => `job ${job.slice(0, 8)} began`),
      came && `${came} came`,
    ];
    const used = Object.fromEntries(devices.map((device) => [device.id, device.used_bytes]));
    for (const label of labels) if (label) this.#noticed.push({ key: `${at} ${label}`, at, label, used });
    this.#noticed.splice(0, Math.max(0, this.#noticed.length - PHASES));
  }

  /** All phases, in order of time: the server's snapshots and what the page noticed. */
  phases(): Phase[] {
    const taken = this.snapshots.map(({ number, time, label, used }) => ({ key: `#${number}`, at: Date.parse(time), label, used }));
    return [...taken, ...this.#noticed].sort((a, b) => a.at - b.at);
  }

  /** All that is known, in order of time. A snapshot is a sample too, from before the page was opened as well. */
  points(device: string): { at: number; bytes: number }[] {
    const samples = this.samples.map(({ at, used }) => ({ at, bytes: used[device] ?? 0 }));
    const taken = this.snapshots.map((shot) => ({ at: Date.parse(shot.time), bytes: shot.used[device] ?? 0 }));
    return [...samples, ...taken].sort((a, b) => a.at - b.at);
  }
}

/** The stretch of time that is drawn: what is known, but no longer than the window. */
export function stretch(now: number, first: number | undefined): [number, number] {
  const from = Math.max(now - WINDOW_MS, Math.min(first ?? now, now - SHORTEST_MS));
  return [from, now];
}

/** The area under a line of steps. */
export function areaUnder(line: string, height: number): string {
  const start = /^M([\d.]+)/.exec(line)?.[1];
  return start === undefined ? '' : `${line}V${height}H${start}Z`;
}

/** A line of steps through points, in a box: memory stays until it changes. */
export function stepPath(
  points: { at: number; bytes: number }[],
  [from, to]: [number, number],
  top: number,
  box: { width: number; height: number },
): string {
  const x = (at: number) => round(((Math.max(from, Math.min(to, at)) - from) / (to - from)) * box.width);
  const y = (bytes: number) => round(box.height - (top > 0 ? bytes / top : 0) * box.height);
  let path = '';
  let level: number | undefined;
  for (const { at, bytes } of points) {
    if (at < from) {
      level = bytes;
      continue;
    }
    if (path === '') path = level === undefined ? `M${x(at)} ${y(bytes)}` : `M0 ${y(level)}H${x(at)}`;
    else path += `H${x(at)}`;
    path += `V${y(bytes)}`;
    level = bytes;
  }
  if (level === undefined) return '';
  return path === '' ? `M0 ${y(level)}H${box.width}` : `${path}H${box.width}`;
}

function same(a: Record<string, number>, b: Record<string, number>): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

function round(value: number): number {
  return Math.round(value * 10) / 10;
}
