// Keeps what the page shows up to date: asks about once a second while someone can see the page, and not at all
// otherwise.

import { useEffect, useState } from 'preact/hooks';
import { History } from './history.ts';
import { ask, type Device, type FailedJob, type Model, type Snapshot, type Stats, type WaitingJob } from './wire.ts';

const EVERY_MS = 1000;
/** After a failure; a server that starts again takes a moment. */
const AFTER_FAILURE_MS = 3000;

export interface Live {
  devices: Device[];
  models: Model[];
  stats: Stats;
  history: History;
  queue: WaitingJob[];
  errors: FailedJob[];
  /** The numbers of the latest pictures of what is being made, by job. */
  previews: Record<string, number>;
  /** Counts answers, so that what depends on the time is drawn anew. */
  turn: number;
}

export interface View {
  live?: Live;
  /** Why the server cannot be asked; the latest answer stays. */
  problem?: string;
}

interface Now {
  devices: Device[];
  models: Model[];
  stats: Stats;
  snapshots: Snapshot[];
  queue: WaitingJob[];
  errors: FailedJob[];
  previews: Record<string, number>;
}

/** A value that stays the same object while it says the same, so that what did not change is not drawn anew. */
class Kept<T> {
  #text = '';
  #value: T | undefined;

  latest(value: T): T {
    const text = JSON.stringify(value);
    if (this.#value === undefined || text !== this.#text) [this.#value, this.#text] = [value, text];
    return this.#value;
  }
}

class Watch {
  readonly #devices = new Kept<Device[]>();
  readonly #models = new Kept<Model[]>();
  readonly #stats = new Kept<Stats>();
  readonly #queue = new Kept<WaitingJob[]>();
  readonly #errors = new Kept<FailedJob[]>();
  readonly #previews = new Kept<Record<string, number>>();
  readonly #history = new History();
  readonly #tell: (change: (before: View) => View) => void;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #turn = 0;
  #asking = false;
  #again = false;

  constructor(tell: (change: (before: View) => View) => void) {
    this.#tell = tell;
  }

  /** Asks now, and then again and again. */
  readonly now = async (): Promise<void> => {
    clearTimeout(this.#timer);
    if (document.visibilityState === 'hidden') return;
    // What is being answered may be from before the change that someone wants to see.
    this.#again = this.#asking;
    if (this.#asking) return;
    this.#asking = true;
    let pause = EVERY_MS;
    try {
      await this.#ask();
    } catch (error) {
      pause = AFTER_FAILURE_MS;
      const problem = error instanceof TypeError ? 'the server does not answer' : String((error as Error).message);
      // A server that was started anew counts its snapshots from the start.
      this.#history.snapshots.length = 0;
      this.#tell((before) => ({ ...before, problem }));
    } finally {
      this.#asking = false;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(this.now, this.#again ? 0 : pause);
  };

  async #ask(): Promise<void> {
    const after = this.#history.latest;
    const told = await ask<Now>(`now?jobs=1${after === undefined ? '' : `&after=${after}`}`);
    const [devices, models] = [this.#devices.latest(told.devices), this.#models.latest(told.models)];
    const [stats, snapshots] = [this.#stats.latest(told.stats), told.snapshots];
    this.#history.add(snapshots);
    const at = Date.now();
    this.#history.sample(at, devices);
    const running = stats.workers.flatMap((worker) => worker.running?.prompt_id ?? []);
    this.#history.notice(at, devices, models, running);
    this.#turn += 1;
    const [queue, errors] = [this.#queue.latest(told.queue), this.#errors.latest(told.errors)];
    const previews = this.#previews.latest(told.previews);
    const live = { devices, models, stats, queue, errors, previews, history: this.#history, turn: this.#turn };
    this.#tell(() => ({ live }));
  }

  stop(): void {
    clearTimeout(this.#timer);
  }
}

/** What the server says now, and a way to ask at once. */
export function useLive(): [View, () => Promise<void>] {
  const [view, tell] = useState<View>({});
  const [watch] = useState(() => new Watch(tell));
  useEffect(() => {
    void watch.now();
    document.addEventListener('visibilitychange', watch.now);
    return () => {
      document.removeEventListener('visibilitychange', watch.now);
      watch.stop();
    };
  }, [watch]);
  return [view, watch.now];
}
