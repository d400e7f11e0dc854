/** What the studio draws: JSON that names arrays, and the arrays' bytes, compressed, fetched when a view wants them. */

export type ArrayRef = number;

export interface ArrayEntry {
  dtype: "u8" | "f16";
  shape: number[];
  low: number; // of u8: value = low + (high − low) · (q / 255)^power
  high: number;
  power: number;
}

export interface Stream {
  kind: "token" | "patch" | "frame" | "query";
  names: string[];
  grid: [number, number] | null; // of the patches among the positions
  before: number; // positions before the first patch
  seconds: number | null;
  pixels?: ArrayRef; // (H, W, 3), of a picture
  frames?: ArrayRef; // (T, F), of a sound
}

export interface Report {
  version: number;
  title: string;
  given: string;
  model: { name: string; task: string; folder: string; parameters: number };
  streams: Record<string, Stream>;
  written: string[] | null;
  guesses: [string, number][][];
  opens?: string | null; // the view that is shown first; else the first that there is
  views: Record<string, unknown>; // by the names of the views (views/index.ts)
  absent?: Record<string, string>; // why this input has none of that name
  arrays: ArrayEntry[];
}

/** Numbers, row by row. */
export interface Numbers {
  shape: number[];
  values: Float32Array;
}

export interface Source {
  report: Report;
  blob(index: ArrayRef): Promise<Uint8Array>; // as they are sent: deflated
}

async function inflate(bytes: Uint8Array): Promise<Uint8Array> {
  const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

export function half(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

export function decode(entry: ArrayEntry, bytes: Uint8Array): Numbers {
  const count = entry.shape.reduce((product, size) => product * size, 1);
  const values = new Float32Array(count);
  if (entry.dtype === "u8") {
    if (bytes.length !== count) throw new Error(`${bytes.length} bytes, and ${count} are wanted`);
    const table = Float32Array.from(
      { length: 256 },
      (_, q) => entry.low + (entry.high - entry.low) * (q / 255) ** entry.power,
    );
    for (let i = 0; i < count; i++) values[i] = table[bytes[i]!]!;
  } else {
    if (bytes.length !== 2 * count) throw new Error(`${bytes.length} bytes, and ${2 * count} are wanted`);
    for (let i = 0; i < count; i++) values[i] = half(bytes[2 * i]! | (bytes[2 * i + 1]! << 8));
  }
  return { shape: entry.shape, values };
}

/** A report and its arrays, each decoded once. */
export class Data {
  readonly report: Report;
  readonly #source: Source;
  readonly #kept = new Map<ArrayRef, Promise<Numbers>>();

  constructor(source: Source) {
    this.#source = source;
    this.report = source.report;
  }

  array(index: ArrayRef): Promise<Numbers> {
    const entry = this.report.arrays[index];
    if (!entry) return Promise.reject(new Error(`there is no array ${index}`));
    let found = this.#kept.get(index);
    if (!found) {
      found = this.#source.blob(index).then(inflate).then((bytes) => decode(entry, bytes));
      this.#kept.set(index, found);
    }
    return found;
  }

  view<T>(name: string): T | undefined {
    return this.report.views[name] as T | undefined;
  }
}

/** The reports inside of this page, "report", "report-1", …; none: a server has them. */
export function embedded(): Source[] {
  const found: Source[] = [];
  for (let which = ""; ; which = `-${found.length}`) {
    const told = document.getElementById(`report${which}`);
    if (!told) return found;
    found.push(sourceOf(JSON.parse(told.textContent ?? "") as Report, which));
  }
}

function sourceOf(report: Report, which: string): Source {
  return {
    report,
    async blob(index) {
      const text = document.getElementById(`blob${which}-${index}`)?.textContent;
      if (text == null) throw new Error(`the file has no array ${index}`);
      const binary = atob(text);
      const bytes = new Uint8Array(binary.length);
      for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
      return bytes;
    },
  };
}

/** The matrix at the given places of the leading axes: (T, S) of (H, T, S), say. */
export function part(of: Numbers, ...at: number[]): Numbers {
  const shape = of.shape.slice(at.length);
  const size = shape.reduce((product, each) => product * each, 1);
  const begin = at.reduce((sum, place, axis) => sum * of.shape[axis]! + place, 0) * size;
  return { shape, values: of.values.subarray(begin, begin + size) };
}

/** The mean over the first axis. */
export function mean(of: Numbers): Numbers {
  const [count, ...shape] = of.shape as [number, ...number[]];
  const size = shape.reduce((product, each) => product * each, 1);
  const values = new Float32Array(size);
  for (let i = 0; i < of.values.length; i++) values[i % size]! += of.values[i]! / count;
  return { shape, values };
}
