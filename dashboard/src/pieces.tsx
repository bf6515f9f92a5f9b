// Small things that several parts of the page show.

import type { ComponentChildren } from 'preact';
import { bytes, exactBytes, seconds } from './format.ts';

/** Bytes in three digits, every one of them in the title. */
export function Bytes({ count }: { count: number }) {
  return (
    <span class="number" title={exactBytes(count)}>
      {bytes(count)}
    </span>
  );
}

export function Seconds({ value }: { value: number }) {
  return (
    <span class="number" title={`${value} s`}>
      {seconds(value)}
    </span>
  );
}

/** The mark of a model's colour. */
export function Hue({ of }: { of: number | undefined }) {
  return <i class={`dot hue-${of ?? 0}`} aria-hidden="true" />;
}

/** What to do where there is nothing to show. */
export function Nothing({ children }: { children: ComponentChildren }) {
  return <p class="nothing">{children}</p>;
}
