// What a dashboard asks, put to Prometheus as Grafana would put it.

export interface Sample {
  labels: Record<string, string>;
  /** Seconds since the epoch, and the value as Prometheus spells it. */
  points: Array<[number, string]>;
}

/** A stretch of time in seconds since the epoch. */
export interface Span {
  from: number;
  to: number;
}

/** What the address says: where Prometheus is, and what to look at. */
export interface Setting {
  board: string;
  prometheus: string;
  span: Span;
  /** Seconds between points at least; the data source's "scrape interval". */
  step: number;
}

export function settingOf(search: string): Setting {
  const asked = new URLSearchParams(search);
  const text = (name: string): string => {
    const value = asked.get(name);
    if (value === null) {
      throw new Error(`the address lacks ${name}`);
    }
    return value;
  };
  return {
    board: text('board'),
    prometheus: text('prometheus'),
    span: { from: Number(text('from')), to: Number(text('to')) },
    step: Number(text('step')),
  };
}

/** Most points of a curve, about as many as a panel has pixels to spare. */
const POINTS = 150;

export function stepOf(setting: Setting, span: Span): number {
  return Math.max(setting.step, Math.ceil((span.to - span.from) / POINTS));
}

/** The range of a panel that has one of its own: only "this month" occurs. */
export function spanOf(setting: Setting, timeFrom?: string): Span {
  if (timeFrom === undefined) {
    return setting.span;
  }
  if (timeFrom !== 'now/M') {
    throw new Error(`cannot read timeFrom ${timeFrom}`);
  }
  const now = new Date(setting.span.to * 1000);
  const from = Date.UTC(now.getUTCFullYear(), now.getUTCMonth(), 1) / 1000;
  return { from, to: setting.span.to };
}

/** Put values in place of Grafana's variables; every one of the board's is "All". */
export function filledIn(expr: string, setting: Setting, span: Span, all: string[]): string {
  const step = stepOf(setting, span);
  const rate = Math.max(step + setting.step, 4 * setting.step);
  const filled = expr
    .replaceAll('$__rate_interval', `${rate}s`)
    .replaceAll('$__range', `${Math.round(span.to - span.from)}s`);
  const named = all.reduce((text, name) => text.replaceAll(`$${name}`, '.*'), filled);
  if (named.includes('$')) {
    throw new Error(`a variable is left in ${named}`);
  }
  return named;
}

async function asked(setting: Setting, path: string, parameters: Record<string, string>) {
  const answer = await fetch(`${setting.prometheus}/api/v1/${path}`, {
    method: 'POST',
    body: new URLSearchParams(parameters),
  });
  const body = await answer.json();
  if (body.status !== 'success') {
    throw new Error(`${parameters.query}: ${body.error}`);
  }
  return body.data.result as Array<Record<string, any>>;
}

export async function instant(setting: Setting, expr: string): Promise<Sample[]> {
  const found = await asked(setting, 'query', {
    query: expr,
    time: String(setting.span.to),
  });
  return found.map((one) => ({ labels: one.metric, points: [one.value] }));
}

export async function curve(setting: Setting, expr: string, span: Span): Promise<Sample[]> {
  const step = stepOf(setting, span);
  const found = await asked(setting, 'query_range', {
    query: expr,
    start: String(Math.floor(span.from / step) * step),
    end: String(span.to),
    step: String(step),
  });
  return found.map((one) => ({ labels: one.metric, points: one.values }));
}
