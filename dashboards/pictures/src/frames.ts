// From samples to Grafana's frames, with the field options of the dashboard applied.

import {
  createDataFrame,
  type DataFrame,
  type Field,
  type FieldConfig,
  FieldType,
  getDisplayProcessor,
  type GrafanaTheme2,
  ThresholdsMode,
} from '@grafana/data';
import type { Sample } from './prometheus';

/** A panel of a dashboard's JSON; the page reads what the generator writes. */
export interface Panel {
  id: number;
  type: string;
  title: string;
  description?: string;
  gridPos: { x: number; y: number; w: number; h: number };
  targets: Array<{ refId: string; expr: string; legendFormat: string }>;
  fieldConfig: { defaults: FieldConfig; overrides: Override[] };
  options: Record<string, any>;
  transformations: Array<{ id: string; options: Record<string, any> }>;
  timeFrom?: string;
}

interface Override {
  matcher: { id: string; options: string };
  properties: Array<{ id: string; value: any }>;
}

/** One series: the target that asked for it, and what came. */
export interface Series {
  target: Panel['targets'][number];
  sample: Sample;
}

export function nameOf({ target, sample }: Series): string {
  if (target.legendFormat === '__auto') {
    const labels = Object.entries(sample.labels).map(([key, value]) => `${key}="${value}"`);
    // Without any label Grafana falls back on the query's own text.
    return labels.length ? `{${labels.join(', ')}}` : target.expr;
  }
  return target.legendFormat.replace(
    /\{\{\s*(\w+)\s*\}\}/g,
    (_, label: string) => sample.labels[label] ?? ''
  );
}

/** Grafana spells the lowest threshold null in JSON and -Infinity in memory. */
function configOf(panel: Panel, name: string): FieldConfig {
  const config: FieldConfig = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    if (matcher.id !== 'byName') {
      throw new Error(`cannot match ${matcher.id}`);
    }
    if (matcher.options === name) {
      for (const { id, value } of properties) {
        if (id.startsWith('custom.')) {
          config.custom = { ...config.custom, [id.slice('custom.'.length)]: value };
        } else {
          Object.assign(config, { [id]: value });
        }
      }
    }
  }
  config.thresholds = {
    mode: ThresholdsMode.Absolute,
    steps: (config.thresholds?.steps ?? []).map(({ value, color }) => ({
      value: value ?? -Infinity,
      color,
    })),
  };
  return config;
}

function configured(field: Field, panel: Panel, theme: GrafanaTheme2, index: number): Field {
  const config = configOf(panel, field.config.displayName ?? field.name);
  config.displayName ??= field.config.displayName;
  const made: Field = { ...field, config, state: { ...field.state, seriesIndex: index } };
  made.display = getDisplayProcessor({ field: made, theme, timeZone: 'utc' });
  return made;
}

/** One frame for each series: its times and its values. */
export function framesOf(panel: Panel, all: Series[], theme: GrafanaTheme2): DataFrame[] {
  return all.map((series, index) => {
    const { points, labels } = series.sample;
    const name = nameOf(series);
    const frame = createDataFrame({
      refId: series.target.refId,
      name,
      fields: [
        { name: 'Time', type: FieldType.time, values: points.map(([at]) => at * 1000) },
        {
          name: 'Value',
          type: FieldType.number,
          labels,
          config: { displayName: name },
          values: points.map(([, value]) => Number(value)),
        },
      ],
    });
    const [times, values] = frame.fields;
    const shown = { ...times };
    shown.display = getDisplayProcessor({ field: shown, theme, timeZone: 'utc' });
    return { ...frame, fields: [shown, configured(values, panel, theme, index)] };
  });
}

/** One row for each label set and a column for each target: merge, then organize. */
export function tableOf(panel: Panel, all: Series[], theme: GrafanaTheme2): DataFrame {
  const organize = panel.transformations.find(({ id }) => id === 'organize')?.options ?? {};
  const columnOf = (refId: string) =>
    panel.targets.length > 1 ? `Value #${refId}` : 'Value';
  const labels = [...new Set(all.flatMap(({ sample }) => Object.keys(sample.labels)))].sort();
  const rows = new Map<string, Record<string, string | number>>();
  for (const { target, sample } of all) {
    const key = JSON.stringify(labels.map((label) => sample.labels[label]));
    const row = rows.get(key) ?? { ...sample.labels };
    row[columnOf(target.refId)] = Number(sample.points[0][1]);
    rows.set(key, row);
  }
  const values = panel.targets.map(({ refId }) => columnOf(refId));
  const place = (name: string): number => organize.indexByName?.[name] ?? Infinity;
  const names = [...labels, ...values]
    .filter((name) => !organize.excludeByName?.[name])
    .sort((one, other) => (place(one) === place(other) ? 0 : place(one) - place(other)));
  const [first] = panel.options.sortBy ?? [];
  const sortedBy = names.find((name) => organize.renameByName?.[name] === first?.displayName);
  const sorted = [...rows.values()];
  if (sortedBy) {
    sorted.sort((one, other) => Number(other[sortedBy] ?? 0) - Number(one[sortedBy] ?? 0));
  }
  const frame = createDataFrame({
    fields: names.map((name) => ({
      name: organize.renameByName?.[name] ?? name,
      type: values.includes(name) ? FieldType.number : FieldType.string,
      values: sorted.map((row) => row[name] ?? null),
    })),
  });
  return {
    ...frame,
    fields: frame.fields.map((field) => configured(field, panel, theme, 0)),
  };
}
