// The split of a model between devices as whole percents, and as text in the allocation language.

/** One share per device, in the devices' order; together 100. */
export type Split = number[];

/** `sim:0,50%;sim:1,30%;cpu,20%`; a device without a share is left out. */
export function splitText(devices: string[], split: Split): string {
  return devices
    .map((device, index) => ({ device, share: split[index] ?? 0 }))
    .filter(({ share }) => share > 0)
    .map(({ device, share }) => `${device},${share}%`)
    .join(';');
}

/** Whole percents that come to 100, as near to these bytes as they can be: the largest remainders are rounded up. */
export function splitOf(bytes: number[]): Split {
  const all = bytes.reduce((total, one) => total + one, 0);
  if (all <= 0) return bytes.map((_, index) => (index === 0 ? 100 : 0));
  const exact = bytes.map((one) => (100 * one) / all);
  const split = exact.map(Math.floor);
  const missing = 100 - split.reduce((total, share) => total + share, 0);
  const order = exact.map((value, index) => ({ index, rest: value - Math.floor(value) }));
  order.sort((a, b) => b.rest - a.rest || a.index - b.index);
  for (const { index } of order.slice(0, missing)) split[index] = (split[index] ?? 0) + 1;
  return split;
}

/** Where the handle after a device stands, in percent from the left. */
export function handleAt(split: Split, handle: number): number {
  return split.slice(0, handle + 1).reduce((total, share) => total + share, 0);
}

/** Moves a handle; those that it meets go along, so that no share is negative and all come to 100. */
export function moveHandle(split: Split, handle: number, to: number): Split {
  const target = Math.round(Math.max(0, Math.min(100, to)));
  const places = split.slice(0, -1).map((_, index) => handleAt(split, index));
  const moved = places.map((place, index) => {
    if (index === handle) return target;
    return index < handle ? Math.min(place, target) : Math.max(place, target);
  });
  return split.map((_, index) => (moved[index] ?? 100) - (index === 0 ? 0 : (moved[index - 1] ?? 0)));
}

/** A text in three parts: before the marked characters, those, and the rest. An empty place marks what follows it. */
export function markedText(text: string, start: number, end: number): [string, string, string] {
  const characters = Array.from(text);
  const from = Math.max(0, Math.min(start, characters.length));
  const to = Math.max(from, Math.min(end, characters.length));
  return [characters.slice(0, from).join(''), characters.slice(from, to).join(''), characters.slice(to).join('')];
}

/** Where the n-th character is in the units that text fields count. */
export function fieldOffset(text: string, character: number): number {
  return Array.from(text).slice(0, character).join('').length;
}
