// The two memory buttons: what is asked, and what came of it.

import type { Model, Snapshot } from './wire.ts';

export interface FreeRequest {
  unload_models: true;
  free_memory?: true;
  force?: true;
}

export interface FreeOutcome {
  left: string[];
  stayed: { name: string; why: string }[];
  /** Bytes that came back, by device. */
  back: { device: string; bytes: number }[];
}

/** The last of the snapshots that a free request leaves. */
export const FREED = 'free: caches emptied';
const BEFORE = 'free: before';

/** What a request did, from the models before and after it and the snapshots that it left. */
export function outcome(before: Model[], after: Model[], snapshots: Snapshot[]): FreeOutcome {
  const here = new Set(after.map((model) => model.id));
  const first = snapshots.find((shot) => shot.label === BEFORE);
  const last = snapshots.findLast((shot) => shot.label === FREED);
  const back = Object.entries(first?.used ?? {}).map(([device, bytes]) => ({
    device,
    bytes: bytes + (first?.cached[device] ?? 0) - (last?.used[device] ?? 0) - (last?.cached[device] ?? 0),
  }));
  return {
    left: before.filter((model) => !here.has(model.id)).map((model) => model.name),
    stayed: after.map((model) => ({ name: model.name, why: why(model) })),
    back: back.filter(({ bytes }) => bytes > 0),
  };
}

function why(model: Model): string {
  switch (model.retention) {
    case 'keep':
      return 'is to be kept';
    case 'default':
      return 'was not marked, and others were marked to go first';
    case 'eject':
      return 'was loaded since';
  }
}
