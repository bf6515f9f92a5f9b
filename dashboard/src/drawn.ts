// What a workflow draws: the size that its latent has, how many at once, and whether every step computes twice.

import type { Prompt } from './wire.ts';

export interface Drawn {
  /** `1024x768`. */
  size: string;
  batch: number;
  hasGuidance: boolean;
}

/** Reads it off a prompt; nothing if no node says a size. */
export function drawnBy(prompt: Prompt): Drawn | undefined {
  const nodes = Object.values(prompt);
  const whole = (value: unknown): value is number => typeof value === 'number' && Number.isInteger(value) && value > 0;
  const latent = nodes.find(({ class_type, inputs }) => /Latent/.test(class_type) && whole(inputs?.width) && whole(inputs?.height));
  const { width, height, batch_size } = latent?.inputs ?? {};
  if (!whole(width) || !whole(height)) return undefined;
  const hasGuidance = nodes.some(({ inputs }) => typeof inputs?.cfg === 'number' && inputs.cfg !== 1);
  return { size: `${width}x${height}`, batch: whole(batch_size) ? batch_size : 1, hasGuidance };
}
