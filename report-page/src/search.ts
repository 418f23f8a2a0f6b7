/** Search: allocations by a file, function or site of their stack, or by an address within them. */

import type { History } from "./history";

/** Return a test of whether an allocation matches. An empty text matches all. */
export function search(history: History, text: string): (row: number) => boolean {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return () => true;
  if (/^0x[0-9a-f]+$/.test(wanted)) {
    const address = Number(wanted);
    return (row) => {
      const first = history.address(row);
      return first <= address && address < first + Math.max(1, history.nbytes[row]);
    };
  }
  const stacks = matchingStacks(history, wanted);
  const { stack } = history;
  const older = history.siteName(0).toLowerCase().includes(wanted);
  return (row) => (stack[row] < 0 ? older : stacks[stack[row]] === 1);
}

/** Return 1 for each stack with a frame that matches, 0 for the others. */
function matchingStacks(history: History, wanted: string): Uint8Array {
  const { stackParent, siteOfStack } = history;
  const sites = history.data.sites.map((name) => name.toLowerCase().includes(wanted));
  const found = new Uint8Array(stackParent.length);
  found[0] = sites[siteOfStack[0]] ? 1 : 0;
  for (let stack = 1; stack < found.length; stack++) {
    const { file, name, line } = history.frame(stack);
    const parent = stackParent[stack];
    const matches = (parent > 0 && found[parent]) || sites[siteOfStack[stack]];
    found[stack] = matches || `${file}:${line} ${name}`.toLowerCase().includes(wanted) ? 1 : 0;
  }
  return found;
}
