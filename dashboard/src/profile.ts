// Where the time of a step goes, block by block.

import type { Model } from './wire.ts';

export interface Time {
  compute_s: number;
  decode_s: number;
  copy_s: number;
  stall_s: number;
}

export interface Times {
  /** One per block of the plan; none for a block that the step did not use. */
  times: (Time | undefined)[];
  /** Whether the devices timed them; else they are what the plan predicts. */
  isMeasured: boolean;
}

export function blockTimes({ plan, profile }: Pick<Model, 'plan' | 'profile'>): Times {
  if (!profile) return { times: plan.prediction.blocks, isMeasured: false };
  const times: (Time | undefined)[] = plan.blocks.map(() => undefined);
  for (const { block, compute_s, decode_s, copy_s, stall_s } of profile.blocks) {
    times[block] = { compute_s, decode_s, copy_s, stall_s };
  }
  return { times, isMeasured: true };
}

export function total(times: (Time | undefined)[]): Time {
  const sum = { compute_s: 0, decode_s: 0, copy_s: 0, stall_s: 0 };
  for (const time of times) {
    sum.compute_s += time?.compute_s ?? 0;
    sum.decode_s += time?.decode_s ?? 0;
    sum.copy_s += time?.copy_s ?? 0;
    sum.stall_s += time?.stall_s ?? 0;
  }
  return sum;
}
