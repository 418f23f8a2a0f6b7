/** The checks of `check` in forebay/snapshot/formats/native.py, which every snapshot passes. */

import { BLOCK, ENTRY, MOST_ACTION, OOM, PENDING_FREE, SEGMENT, type Snapshot, type Table } from "./model";
import { require } from "./rules";

const MOST = 2 ** 62; // the sum of two smaller values fits a signed 64-bit integer

export function check(snapshot: Snapshot): void {
  const { segments, blocks, trace, parent, frame, frames, strings, labels } = snapshot;
  const stacks = Math.max(1, parent.length);
  below(segments, SEGMENT.stack, stacks, "the stack of a segment");
  below(blocks, BLOCK.stack, stacks, "the stack of a block");
  below(blocks, BLOCK.segment, segments.count, "the segment of a block");
  below(trace, ENTRY.stack, stacks, "the stack of an entry");
  below(trace, ENTRY.note, labels.length + 1, "the note of an entry");
  for (let row = 1; row < parent.length; row++) {
    require(frame[row] < frames.length / 3, "the frame of a stack is not in its table");
    require(parent[row] < row, "a stack's parent does not precede it");
  }
  for (let at = 0; at < frames.length; at += 3) {
    require(frames[at] < strings.length, "the file of a frame is not in its table");
    require(frames[at + 1] < strings.length, "the name of a frame is not in its table");
  }
  let requested = 0;
  for (let row = 0; row < blocks.count; row++) {
    require(blocks.number(row, BLOCK.state) <= PENDING_FREE, "a block has an unknown state");
    requested += blocks.number(row, BLOCK.requested);
  }
  let sizes = 0;
  for (let row = 0; row < trace.count; row++) {
    const action = trace.get(row, ENTRY.action);
    require(action >= 1 && action <= MOST_ACTION, "an entry has an unknown action");
    require(trace.number(row, ENTRY.time) < MOST, "an entry's time is out of range");
    if (action === OOM) continue;
    require(trace.number(row, ENTRY.address) < MOST, "an address in trace is out of range");
    sizes += trace.number(row, ENTRY.nbytes);
  }
  require(sizes < MOST, "the sizes in trace are out of range");
  require(requested < MOST, "the requested sizes are out of range");
  ordered(segments, SEGMENT.address, SEGMENT.nbytes, "segments");
  ordered(blocks, BLOCK.address, BLOCK.nbytes, "blocks");
  for (let row = 0; row < blocks.count; row++) {
    const segment = blocks.get(row, BLOCK.segment);
    const [begin, size] = [segments.big(segment, SEGMENT.address), segments.big(segment, SEGMENT.nbytes)];
    const [own, length] = [blocks.big(row, BLOCK.address), blocks.big(row, BLOCK.nbytes)];
    require(own >= begin && own + length <= begin + size, "a block lies outside its segment");
  }
}

function below(table: Table, word: number, limit: number, what: string): void {
  let most = 0;
  for (let row = 0; row < table.count; row++) most = Math.max(most, table.get(row, word));
  require(!table.count || most < limit, `${what} is not in its table`);
}

function ordered(table: Table, address: number, nbytes: number, name: string): void {
  let [end, sum] = [0n, 0];
  for (let row = 0; row < table.count; row++) {
    const begin = table.big(row, address);
    require(table.number(row, address) < MOST, `an address in ${name} is out of range`);
    require(end <= begin, `the ${name} overlap or are not sorted by address`);
    end = begin + table.big(row, nbytes);
    sum += table.number(row, nbytes);
  }
  require(sum < MOST, `the sizes in ${name} are out of range`);
}
