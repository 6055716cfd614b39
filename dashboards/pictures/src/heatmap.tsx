// The heat map is a panel of Grafana and not one of its components: drawn here, simply.

import { formattedValueToString, type GrafanaTheme2, getValueFormat } from '@grafana/data';
import { useEffect, useRef } from 'react';
import type { Series } from './frames';
import type { Span } from './prometheus';

const LEFT = 60;
const BOTTOM = 24;
const GAP = 1;
const MARKS = 8;
// From dark to bright, as the scheme Oranges on a dark page.
const FAINT = [74, 36, 12];
const BRIGHT = [255, 152, 48];

interface Props {
  all: Series[];
  span: Span;
  step: number;
  width: number;
  height: number;
  theme: GrafanaTheme2;
}

/** Counts by bucket and time; Prometheus cumulates over the buckets. */
function cells(all: Series[]): { bounds: string[]; counts: Array<Map<number, number>> } {
  const rising = [...all].sort(
    (one, other) => bound(one.sample.labels.le) - bound(other.sample.labels.le)
  );
  const counts = rising.map(({ sample }, index) => {
    const below = new Map(index ? rising[index - 1].sample.points : []);
    return new Map(
      sample.points.map(([at, value]) => [
        at,
        Math.max(0, Number(value) - Number(below.get(at) ?? 0)),
      ])
    );
  });
  return { bounds: rising.map(({ sample }) => sample.labels.le), counts };
}

function bound(le: string): number {
  return le === '+Inf' ? Infinity : Number(le);
}

function hue(share: number): string {
  const parts = FAINT.map((from, index) => from + (BRIGHT[index] - from) * share);
  return `rgb(${parts.map(Math.round).join(',')})`;
}

export function Heatmap({ all, span, step, width, height, theme }: Props) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    const pen = canvas.current!.getContext('2d')!;
    const { bounds, counts } = cells(all);
    const most = Math.max(1e-9, ...counts.flatMap((row) => [...row.values()]));
    const tall = (height - BOTTOM) / bounds.length;
    const x = (at: number) => LEFT + ((width - LEFT) * (at - span.from)) / (span.to - span.from);
    const seconds = getValueFormat('s');
    const every = Math.ceil(14 / tall);
    pen.font = `12px ${theme.typography.fontFamily}`;
    pen.textBaseline = 'middle';
    counts.forEach((row, index) => {
      const y = height - BOTTOM - (index + 1) * tall;
      pen.fillStyle = theme.colors.text.primary;
      pen.textAlign = 'right';
      if (index % every === 0) {
        const upto = bound(bounds[index]);
        const text = Number.isFinite(upto) ? formattedValueToString(seconds(upto)) : '+Inf';
        pen.fillText(text, LEFT - 8, y + tall / 2);
      }
      for (const [at, count] of row) {
        if (count > 1e-9) {
          pen.fillStyle = hue(Math.sqrt(count / most));
          const left = Math.max(LEFT, x(at - step));
          pen.fillRect(left, y, Math.max(1, x(at) - left - GAP), tall - GAP);
        }
      }
    });
    pen.fillStyle = theme.colors.text.primary;
    pen.textAlign = 'center';
    const apart = 60 * Math.ceil((span.to - span.from) / 60 / MARKS);
    for (let at = Math.ceil(span.from / apart) * apart; at < span.to; at += apart) {
      const clock = new Date(at * 1000).toISOString().slice(11, 16);
      pen.fillText(clock, x(at), height - BOTTOM / 2);
    }
  }, [all, span, step, width, height, theme]);
  return <canvas ref={canvas} width={width} height={height} />;
}
