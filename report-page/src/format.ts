/** Numbers as text. Bytes and durations read as those of forebay's other reports. */

export function bytes(n: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (power < 4 && Math.abs(n) / 1024 ** power >= 1023.995) power++;
  return power ? `${(n / 1024 ** power).toFixed(2)} ${units[power]}` : `${Math.round(n)} B`;
}

/** Bytes without trailing zeros, for axes. */
export function shortBytes(n: number): string {
  return n ? bytes(n).replace(/\.0+ |(\.\d*?)0+ /, "$1 ") : "0";
}

export function change(n: number): string {
  return n < 0 ? `−${bytes(-n)}` : `+${bytes(n)}`;
}

const COUNT = new Intl.NumberFormat("en");

export function count(n: number): string {
  return COUNT.format(n);
}

export function countChange(n: number): string {
  return `${n < 0 ? "−" : "+"}${count(Math.abs(n))}`;
}

export function plural(n: number, noun: string): string {
  return `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
}

export function percentage(share: number): string {
  return `${(100 * share).toFixed(1)} %`;
}

export function duration(ns: number): string {
  if (ns >= 120e9) return `${count(Math.floor(ns / 60e9))} min ${Math.floor(ns / 1e9) % 60} s`;
  const units: [string, number][] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  const [unit, size] = units.find(([, size]) => ns >= size) ?? ["ns", 1];
  return `${+(ns / size).toPrecision(4)} ${unit}`;
}

/** A number with three significant digits, as forebay's texts have rates. */
export function rate(perSecond: number): string {
  return perSecond >= 100 ? count(Math.round(perSecond)) : String(+perSecond.toPrecision(3));
}

/** A time on an axis whose ticks are `step` apart. */
export function clock(ns: number, step: number): string {
  if (step >= 60e9) return `${+(ns / 60e9).toFixed(2)} min`;
  const units: [string, number][] = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  const [unit, size] = units.find(([, size]) => step >= size / 10) ?? ["ns", 1];
  const digits = Math.max(0, Math.ceil(Math.log10(size / step)));
  return `${(ns / size).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${unit}`;
}

export function hex(address: number): string {
  return `0x${address.toString(16)}`;
}

/** Round numbers between two bounds: a power of two apart, or 1, 2 or 5 times a power of ten. */
export function ticks(low: number, high: number, most: number, binary = false): { step: number; values: number[] } {
  const least = Math.max((high - low) / most, Number.MIN_VALUE);
  let step = binary ? 2 ** Math.ceil(Math.log2(least)) : 10 ** Math.floor(Math.log10(least));
  if (!binary) step *= [1, 2, 5, 10].find((factor) => step * factor >= least) ?? 10;
  step = Math.max(1, step);
  const values: number[] = [];
  for (let value = Math.ceil(low / step) * step; value <= high && values.length < 100; value += step) values.push(value);
  return { step, values };
}

/** Format the place of a frame in the source; C++ frames often have no line. */
export function sourceLine(file: string, line: number): string {
  return line ? `${file}:${line}` : file;
}
