/** One way to draw, two places to draw to: a canvas, which is seen, and SVG, which is saved. */

import type { Theme } from "./theme";

export interface TextStyle {
  size?: number;
  color?: string;
  align?: "left" | "center" | "right";
  baseline?: "top" | "middle" | "bottom";
  bold?: boolean;
  mono?: boolean;
  turn?: number; // radians, about the point
}

export interface Painter {
  readonly theme: Theme;
  rect(x: number, y: number, width: number, height: number, fill?: string | null, stroke?: string | null): void;
  line(points: readonly (readonly [number, number])[], color: string, width?: number, dash?: number[]): void;
  curve(x0: number, y0: number, x1: number, y1: number, color: string, width: number): void; // level at both ends
  circle(x: number, y: number, radius: number, fill: string | null, stroke?: string | null): void;
  text(words: string, x: number, y: number, style?: TextStyle): void;
  width(words: string, style?: TextStyle): number;
  /** A matrix as pixels: colours of (row, column), each 0xRRGGBB, stretched without smoothing. */
  matrix(x: number, y: number, width: number, height: number, rows: number, columns: number, color: (r: number, c: number) => number): void;
}

const SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const MONO = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace";

function font(style: TextStyle): string {
  return `${style.bold ? "600 " : ""}${style.size ?? 12}px ${style.mono ? MONO : SANS}`;
}

export function hex(color: number): string {
  return "#" + color.toString(16).padStart(6, "0");
}

/** Pixels of a matrix, one for each cell, or for each block of cells where there are more of them than pixels. */
export function pixels(rows: number, columns: number, color: (r: number, c: number) => number): ImageData {
  const image = new ImageData(columns, rows);
  for (let r = 0, i = 0; r < rows; r++)
    for (let c = 0; c < columns; c++, i += 4) {
      const found = color(r, c);
      image.data[i] = found >> 16;
      image.data[i + 1] = (found >> 8) & 255;
      image.data[i + 2] = found & 255;
      image.data[i + 3] = 255;
    }
  return image;
}

function imageOf(rows: number, columns: number, color: (r: number, c: number) => number): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  canvas.getContext("2d")!.putImageData(pixels(rows, columns, color), 0, 0);
  return canvas;
}

export class CanvasPainter implements Painter {
  constructor(
    private readonly context: CanvasRenderingContext2D,
    readonly theme: Theme,
  ) {}

  rect(x: number, y: number, width: number, height: number, fill?: string | null, stroke?: string | null): void {
    if (fill) {
      this.context.fillStyle = fill;
      this.context.fillRect(x, y, width, height);
    }
    if (stroke) {
      this.context.strokeStyle = stroke;
      this.context.lineWidth = 1;
      this.context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    }
  }

  line(points: readonly (readonly [number, number])[], color: string, width = 1, dash: number[] = []): void {
    this.context.beginPath();
    points.forEach(([x, y], i) => (i ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
    this.context.strokeStyle = color;
    this.context.lineWidth = width;
    this.context.lineJoin = "round";
    this.context.setLineDash(dash);
    this.context.stroke();
    this.context.setLineDash([]);
  }

  curve(x0: number, y0: number, x1: number, y1: number, color: string, width: number): void {
    const middle = (x0 + x1) / 2;
    this.context.beginPath();
    this.context.moveTo(x0, y0);
    this.context.bezierCurveTo(middle, y0, middle, y1, x1, y1);
    this.context.strokeStyle = color;
    this.context.lineWidth = width;
    this.context.stroke();
  }

  circle(x: number, y: number, radius: number, fill: string | null, stroke: string | null = null): void {
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    if (fill) {
      this.context.fillStyle = fill;
      this.context.fill();
    }
    if (stroke) {
      this.context.strokeStyle = stroke;
      this.context.lineWidth = 1.5;
      this.context.stroke();
    }
  }

  text(words: string, x: number, y: number, style: TextStyle = {}): void {
    this.context.save();
    this.context.translate(x, y);
    this.context.rotate(style.turn ?? 0);
    this.context.font = font(style);
    this.context.fillStyle = style.color ?? this.theme.ink;
    this.context.textAlign = style.align ?? "left";
    this.context.textBaseline = style.baseline ?? "middle";
    this.context.fillText(words, 0, 0);
    this.context.restore();
  }

  width(words: string, style: TextStyle = {}): number {
    this.context.font = font(style);
    return this.context.measureText(words).width;
  }

  matrix(x: number, y: number, width: number, height: number, rows: number, columns: number, color: (r: number, c: number) => number): void {
    if (!rows || !columns) return;
    this.context.imageSmoothingEnabled = width < columns || height < rows;
    this.context.drawImage(imageOf(rows, columns, color), x, y, width, height);
  }
}

export function escaped(words: string): string {
  return words.replace(/[&<>"']/g, (sign) => `&#${sign.charCodeAt(0)};`).replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�");
}

export class SvgPainter implements Painter {
  readonly #parts: string[] = [];

  constructor(
    readonly theme: Theme,
    private readonly measure: (words: string, style: TextStyle) => number,
  ) {}

  rect(x: number, y: number, width: number, height: number, fill?: string | null, stroke?: string | null): void {
    this.#parts.push(
      `<rect x="${x}" y="${y}" width="${Math.max(0, width)}" height="${Math.max(0, height)}" fill="${fill ?? "none"}"` +
        (stroke ? ` stroke="${stroke}"` : "") + "/>",
    );
  }

  line(points: readonly (readonly [number, number])[], color: string, width = 1, dash: number[] = []): void {
    const path = points.map(([x, y]) => `${x.toFixed(2)},${y.toFixed(2)}`).join(" ");
    this.#parts.push(
      `<polyline points="${path}" fill="none" stroke="${color}" stroke-width="${width}"` +
        (dash.length ? ` stroke-dasharray="${dash.join(" ")}"` : "") + ` stroke-linejoin="round"/>`,
    );
  }

  curve(x0: number, y0: number, x1: number, y1: number, color: string, width: number): void {
    const middle = (x0 + x1) / 2;
    this.#parts.push(
      `<path d="M${x0},${y0} C${middle},${y0} ${middle},${y1} ${x1},${y1}" fill="none" stroke="${color}" stroke-width="${width}"/>`,
    );
  }

  circle(x: number, y: number, radius: number, fill: string | null, stroke: string | null = null): void {
    this.#parts.push(
      `<circle cx="${x}" cy="${y}" r="${radius}" fill="${fill ?? "none"}"${stroke ? ` stroke="${stroke}" stroke-width="1.5"` : ""}/>`,
    );
  }

  text(words: string, x: number, y: number, style: TextStyle = {}): void {
    const anchor = { left: "start", center: "middle", right: "end" }[style.align ?? "left"];
    const baseline = { top: "hanging", middle: "central", bottom: "text-after-edge" }[style.baseline ?? "middle"];
    const turn = style.turn ? ` transform="rotate(${(style.turn * 180) / Math.PI} ${x} ${y})"` : "";
    this.#parts.push(
      `<text x="${x}" y="${y}" font-family="${escaped(style.mono ? MONO : SANS)}" font-size="${style.size ?? 12}"` +
        `${style.bold ? ' font-weight="600"' : ""} fill="${style.color ?? this.theme.ink}" text-anchor="${anchor}" ` +
        `dominant-baseline="${baseline}" xml:space="preserve"${turn}>${escaped(words)}</text>`,
    );
  }

  width(words: string, style: TextStyle = {}): number {
    return this.measure(words, style);
  }

  matrix(x: number, y: number, width: number, height: number, rows: number, columns: number, color: (r: number, c: number) => number): void {
    if (!rows || !columns) return;
    const url = imageOf(rows, columns, color).toDataURL("image/png");
    this.#parts.push(
      `<image x="${x}" y="${y}" width="${width}" height="${height}" preserveAspectRatio="none" style="image-rendering:pixelated" href="${url}"/>`,
    );
  }

  whole(width: number, height: number): string {
    return (
      `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
      `<rect width="100%" height="100%" fill="${this.theme.paper}"/>${this.#parts.join("")}</svg>`
    );
  }
}
