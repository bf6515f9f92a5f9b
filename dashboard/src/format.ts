// Numbers as people read them.

const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];

/** Three digits and a binary unit: `4.41 MiB`. */
export function bytes(count: number): string {
  let value = Math.abs(count);
  let unit = 0;
  // Three digits do not reach further than 999.
  while (unit < UNITS.length - 1 && value >= (unit === 0 ? 1024 : 999.5)) {
    value /= 1024;
    unit += 1;
  }
  const sign = count < 0 ? '−' : '';
  return `${sign}${unit === 0 ? value : threeDigits(value)} ${UNITS[unit]}`;
}

/** Every byte, for titles: `4,620,544 bytes`. */
export function exactBytes(count: number): string {
  return `${count.toLocaleString('en-US')} ${count === 1 ? 'byte' : 'bytes'}`;
}

/** `1.25 s`, `18.6 ms`, `250 µs`. */
export function seconds(value: number): string {
  if (!Number.isFinite(value)) return '–';
  if (value === 0) return '0 s';
  if (value >= 60) {
    const whole = Math.round(value);
    const minutes = Math.floor(whole / 60);
    if (minutes < 60) return `${minutes} min ${String(whole % 60).padStart(2, '0')} s`;
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
  }
  if (value >= 0.9995) return `${threeDigits(value)} s`;
  if (value >= 0.0009995) return `${threeDigits(value * 1e3)} ms`;
  return `${threeDigits(value * 1e6)} µs`;
}

export function percent(part: number, whole: number): string {
  if (whole <= 0) return '0 %';
  const share = (100 * part) / whole;
  if (share > 0 && share < 0.1) return '< 0.1 %';
  return `${share < 10 ? share.toFixed(1) : Math.round(share)} %`;
}

/** How measured compares with predicted: `3 % slower`, `2.0 × faster`, `as predicted`. */
export function against(measured: number, predicted: number): string {
  if (!(predicted > 0) || !(measured > 0)) return '';
  const ratio = measured / predicted;
  const word = ratio >= 1 ? 'slower' : 'faster';
  const factor = ratio >= 1 ? ratio : 1 / ratio;
  if (factor < 1.005) return 'as predicted';
  if (factor < 1.5) return `${Math.round((factor - 1) * 100)} % ${word}`;
  return `${factor < 10 ? factor.toFixed(1) : Math.round(factor)} × ${word}`;
}

export function clock(at: number): string {
  const time = new Date(at);
  return [time.getHours(), time.getMinutes(), time.getSeconds()].map((part) => String(part).padStart(2, '0')).join(':');
}

function threeDigits(value: number): string {
  if (value >= 99.95) return value.toFixed(0);
  return value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}
