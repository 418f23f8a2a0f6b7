/** Draws the areas of a picture into pixels: each band in a shade of its layer's color, with a seam on large ones. */

import type { Picture } from "./picture";
import { LAYERS, UNMATCHED } from "./layers";
import type { Theme } from "./theme";

const SHADES = [0, 0.07, -0.07, 0.035, -0.035]; // so that neighbouring bands differ
const SEAM = 4; // pixels: lower bands have no seam
const FAINT = 0.3; // opacity of what does not match a search

export class Raster {
  private readonly canvas = document.createElement("canvas");

  /** Draw a picture at a place of a canvas. `rows` is the height in device pixels. */
  draw(picture: Picture, theme: Theme, pinned: number, target: CanvasRenderingContext2D, box: DOMRect, rows: number): void {
    const { canvas } = this;
    const width = picture.columns;
    if (canvas.width !== width || canvas.height !== rows) [canvas.width, canvas.height] = [width, rows];
    const context = canvas.getContext("2d");
    if (!context || !width || !rows) return;
    const image = context.createImageData(width, rows);
    const pixels = new Uint32Array(image.data.buffer);
    const shades = palette(theme);
    const mark = packed(theme.rgb("ink"), 1);
    const scale = rows / picture.top;
    picture.eachArea((column, layer, row, from, to) => {
      const upper = Math.max(0, rows - Math.round(to * scale));
      const lower = rows - Math.round(from * scale);
      const colors = shades[layer];
      const color = row < 0 ? colors[0] : row === pinned ? mark : colors[row % SHADES.length];
      for (let at = upper * width + column, stop = lower * width; at < stop; at += width) pixels[at] = color;
      if (row >= 0 && row !== pinned && lower - upper >= SEAM) pixels[upper * width + column] = colors[SHADES.length];
    });
    context.putImageData(image, 0, 0);
    target.imageSmoothingEnabled = false;
    target.drawImage(canvas, box.x, box.y, box.width, box.height);
  }
}

/** Return the shades of each layer, and after them the color of its seams. */
function palette(theme: Theme): number[][] {
  return Array.from({ length: LAYERS }, (_, layer) => {
    const color = theme.rgb(`c${Math.min(layer, LAYERS - 2)}`);
    const opacity = layer === UNMATCHED ? FAINT : 1;
    const seam = mix(color, theme.rgb("card"), 0.45);
    return [...SHADES.map((shade) => packed(shaded(color, shade), opacity)), packed(seam, opacity)];
  });
}

type Rgb = [number, number, number];

function shaded(color: Rgb, by: number): Rgb {
  const other: Rgb = by > 0 ? [255, 255, 255] : [0, 0, 0];
  return mix(color, other, Math.abs(by) * 2);
}

function mix(color: Rgb, other: Rgb, share: number): Rgb {
  return color.map((value, i) => Math.round(value + (other[i] - value) * share)) as Rgb;
}

/** Return a color as one number, in the order of bytes of image data on all common machines. */
function packed([red, green, blue]: Rgb, opacity: number): number {
  return ((Math.round(255 * opacity) << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}
