/** The members of a zip file, read from any place of it. What forebay does not write (encryption, ZIP64) is refused. */

import { BadSnapshot, require } from "./rules";

const END = 0x06054b50;
const CENTRAL = 0x02014b50;
const LOCAL = 0x04034b50;
const MOST_COMMENT = 0xffff;
const DEFLATED = 8;

export interface Member {
  name: string;
  method: number;
  crc: number;
  packed: number; // bytes in the file
  size: number;
  offset: number;
}

export class Archive {
  private constructor(
    private readonly file: Blob,
    readonly members: Member[],
  ) {}

  static async open(file: Blob): Promise<Archive> {
    const from = Math.max(0, file.size - MOST_COMMENT - 22);
    const tail = await view(file, from, file.size);
    let at = tail.byteLength - 22;
    while (at >= 0 && tail.getUint32(at, true) !== END) at--;
    require(at >= 0, "not a forebay snapshot, or truncated: it has no end of a zip file");
    const [count, length, start] = [tail.getUint16(at + 10, true), tail.getUint32(at + 12, true), tail.getUint32(at + 16, true)];
    require(start + length <= from + at, "not a forebay snapshot: its directory is out of range");
    const directory = await view(file, start, start + length);
    const members: Member[] = [];
    for (let place = 0; members.length < count; ) {
      require(place + 46 <= length && directory.getUint32(place, true) === CENTRAL, "not a forebay snapshot: its directory is damaged");
      const number = (offset: number) => directory.getUint32(place + offset, true);
      const short = (offset: number) => directory.getUint16(place + offset, true);
      require(!(short(8) & 1), "not a forebay snapshot: a member is encrypted");
      const end = place + 46 + short(28);
      require(end <= length, "not a forebay snapshot: its directory is damaged");
      const name = new TextDecoder().decode(new Uint8Array(directory.buffer, place + 46, short(28)));
      members.push({ name, method: short(10), crc: number(16), packed: number(20), size: number(24), offset: number(42) });
      place = end + short(30) + short(32);
    }
    return new Archive(file, members);
  }

  /** Return the content of a member, whose size must be the one in the directory. */
  async read(member: Member): Promise<Uint8Array<ArrayBuffer>> {
    const { name, method, packed, size, offset } = member;
    require(method === 0 || method === DEFLATED, "a member has an unsupported compression method");
    require(offset + 30 <= this.file.size, "not a forebay snapshot: an offset is out of range");
    const head = await view(this.file, offset, offset + 30);
    require(head.getUint32(0, true) === LOCAL, `not a forebay snapshot: ${name} is damaged`);
    const begin = offset + 30 + head.getUint16(26, true) + head.getUint16(28, true);
    require(begin + packed <= this.file.size, `${name} is truncated`);
    const content = this.file.slice(begin, begin + packed);
    let stream: ReadableStream<Uint8Array> = content.stream();
    if (method === DEFLATED) stream = stream.pipeThrough(new DecompressionStream("deflate-raw") as ReadableWritablePair);
    const bytes = new Uint8Array(size);
    let at = 0;
    const reader = stream.getReader();
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        throw new BadSnapshot(`${name} is damaged: ${error instanceof Error ? error.message : String(error)}`);
      });
      if (done) break;
      if (at + value.length > size) {
        void reader.cancel().catch(() => undefined);
        throw new BadSnapshot(`${name} is longer than the directory states`);
      }
      bytes.set(value, at);
      at += value.length;
    }
    require(at === size, `${name} is truncated`);
    require(crc32(bytes) === member.crc, `${name} is damaged: its checksum is wrong`);
    return bytes;
  }
}

async function view(file: Blob, begin: number, end: number): Promise<DataView<ArrayBuffer>> {
  return new DataView(await file.slice(begin, end).arrayBuffer());
}

const CRC = Uint32Array.from({ length: 256 }, (_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ 0xedb88320 : value >>> 1;
  return value;
});

function crc32(bytes: Uint8Array): number {
  let value = 0xffffffff;
  for (const byte of bytes) value = CRC[(value ^ byte) & 0xff] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}
