/** The content of a file in parts, decompressed if it is in gzip format, with limits that its size sets. */

import { BadSnapshot, type Rules } from "./rules";

export type Progress = (done: number, total: number) => void;

export class Source {
  readonly compressed: boolean;
  position = 0; // bytes of the content so far
  truncated = false;
  private readonly most: number;

  constructor(
    private readonly file: Blob,
    start: Uint8Array,
    private readonly rules: Rules,
    private readonly progress: Progress,
  ) {
    this.compressed = start[0] === 0x1f && start[1] === 0x8b;
    const { most_ratio, always } = rules.budget;
    this.most = this.compressed ? Math.max(most_ratio * file.size, always) : file.size;
  }

  /** The bytes of the content that were not read yet; huge if they are unknown. */
  get beyond(): bigint {
    return this.compressed ? 1n << 62n : BigInt(this.file.size - this.position);
  }

  /** Return the bytes of memory that values of the content may take so far. */
  get limit(): bigint {
    return BigInt(budget(this.rules, this.position, this.compressed));
  }

  async *parts(): AsyncGenerator<Uint8Array> {
    let done = 0;
    const counted = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>({
      transform: (part, sink) => {
        this.progress((done += part.length), this.file.size);
        sink.enqueue(part);
      },
    });
    let stream: ReadableStream<Uint8Array> = this.file.stream().pipeThrough(counted);
    if (this.compressed) stream = stream.pipeThrough(new DecompressionStream("gzip") as ReadableWritablePair);
    const reader = stream.getReader();
    try {
      for (;;) {
        const { done: ended, value } = await this.next(reader);
        if (ended || !value) return;
        this.position += value.length;
        if (this.position > this.most) {
          throw new BadSnapshot(`it has more than ${this.most.toLocaleString("en")} bytes when it is decompressed`);
        }
        yield value;
      }
    } finally {
      void reader.cancel().catch(() => undefined);
    }
  }

  private async next(reader: ReadableStreamDefaultReader<Uint8Array>): Promise<ReadableStreamReadResult<Uint8Array>> {
    try {
      return await reader.read();
    } catch (error) {
      const text = error instanceof Error ? error.message : String(error);
      if (this.compressed && /truncated|unexpected end|incomplete/i.test(text)) return { done: true, value: undefined };
      if (this.compressed && error instanceof TypeError) throw new BadSnapshot(`invalid compressed data: ${text}`);
      throw new BadSnapshot(`the file cannot be read: ${text}`);
    }
  }
}

/** Return the bytes of memory that reading may take: Note [Objects are counted before they are created]. */
export function budget({ budget: { per_byte, per_decompressed, fixed } }: Rules, size: number, compressed: boolean): number {
  return ((compressed ? per_decompressed : per_byte) - 1) * size + fixed;
}
