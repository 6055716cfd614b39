// Each kind of panel that the dashboards use, by Grafana's component of that kind.

import {
  type DataFrame,
  type DisplayValue,
  type GrafanaTheme2,
  VizOrientation,
  dateTime,
  getValueFormat,
  formattedValueToString,
} from '@grafana/data';
import { BarGaugeNamePlacement, BarGaugeValueMode } from '@grafana/schema';
import {
  BarGauge,
  BigValue,
  Table,
  TimeSeries,
} from '@grafana/ui';
import { type Panel, type Series, framesOf, tableOf } from './frames';
import { Heatmap } from './heatmap';
import { type Setting, spanOf, stepOf } from './prometheus';

interface Props {
  panel: Panel;
  all: Series[];
  setting: Setting;
  theme: GrafanaTheme2;
  width: number;
  height: number;
}

/** What stands there while there is nothing. */
function Nothing({ panel, theme, width, height }: Props) {
  const text = panel.fieldConfig.defaults.noValue ?? 'No data';
  const style = {
    width,
    height,
    display: 'flex',
    alignItems: 'center',
    justifyContent: 'center',
    color: theme.colors.text.secondary,
  };
  return <div style={style}>{text}</div>;
}

function lastOf(frame: DataFrame): DisplayValue {
  const field = frame.fields[1];
  const value = field.values.at(-1);
  return { ...field.display!(value), title: field.config.displayName };
}

function Stats(props: Props) {
  const { panel, all, theme, width, height } = props;
  const values: DisplayValue[] = framesOf(panel, all, theme).map(lastOf);
  if (values.length === 0) {
    const text = panel.fieldConfig.defaults.noValue ?? 'No data';
    values.push({ text, numeric: NaN, color: theme.colors.text.primary });
  }
  const { colorMode, graphMode, justifyMode, textMode } = panel.options;
  const each = Math.floor((width - 8 * (values.length - 1)) / values.length);
  return (
    <div style={{ display: 'flex', gap: 8 }}>
      {values.map((value, index) => (
        <BigValue
          {...{ colorMode, graphMode, justifyMode, textMode, theme, height }}
          key={index}
          value={value}
          width={each}
          text={panel.options.text}
          count={values.length}
        />
      ))}
    </div>
  );
}

function Bars(props: Props) {
  const { panel, all, theme, width, height } = props;
  const frames = framesOf(panel, all, theme);
  if (frames.length === 0) {
    return <Nothing {...props} />;
  }
  const values = frames.map(lastOf);
  const numbers = values.map(({ numeric }) => numeric);
  const least = panel.fieldConfig.defaults.min ?? Math.min(...numbers);
  const most = panel.fieldConfig.defaults.max ?? Math.max(...numbers);
  const gap = 8;
  const room = (height - gap * values.length) / values.length;
  const tall = Math.min(Math.max(panel.options.minVizHeight, room), panel.options.maxVizHeight);
  const titles = values.map(({ title }) => title ?? '');
  const longest = titles.reduce((one, two) => (two.length > one.length ? two : one));
  const texts = values.map((value) => formattedValueToString(value));
  const widest = texts.reduce((one, two) => (two.length > one.length ? two : one));
  return (
    <div style={{ display: 'flex', flexDirection: 'column', gap }}>
      {values.map((value, index) => {
        const field = frames[index].fields[1];
        return (
          <BarGauge
            key={index}
            theme={theme}
            width={width}
            height={tall}
            field={{ ...field.config, min: least, max: most }}
            display={field.display}
            value={value}
            orientation={VizOrientation.Horizontal}
            displayMode={panel.options.displayMode}
            showUnfilled={panel.options.showUnfilled}
            valueDisplayMode={BarGaugeValueMode.Color}
            namePlacement={panel.options.namePlacement ?? BarGaugeNamePlacement.Auto}
            alignmentFactors={{ title: longest, text: widest }}
            text={panel.options.text}
            itemSpacing={gap}
          />
        );
      })}
    </div>
  );
}

function Curves(props: Props) {
  const { panel, all, theme, setting, width, height } = props;
  const frames = framesOf(panel, all, theme);
  if (frames.length === 0) {
    return <Nothing {...props} />;
  }
  const span = spanOf(setting, panel.timeFrom);
  const from = dateTime(span.from * 1000);
  const to = dateTime(span.to * 1000);
  return (
    <TimeSeries
      frames={frames}
      width={width}
      height={height}
      timeRange={{ from, to, raw: { from, to } }}
      timeZone="utc"
      legend={{ calcs: [], ...panel.options.legend }}
      options={panel.options}
    />
  );
}

function Heat(props: Props) {
  const { panel, all, setting } = props;
  if (all.length === 0) {
    return <Nothing {...props} />;
  }
  const span = spanOf(setting, panel.timeFrom);
  return <Heatmap {...props} span={span} step={stepOf(setting, span)} />;
}

function Rows(props: Props) {
  const { panel, all, theme, width, height } = props;
  if (all.length === 0) {
    return <Nothing {...props} />;
  }
  return <Table data={tableOf(panel, all, theme)} width={width} height={height} />;
}

export function Content(props: Props) {
  switch (props.panel.type) {
    case 'stat':
      return <Stats {...props} />;
    case 'bargauge':
      return <Bars {...props} />;
    case 'timeseries':
      return <Curves {...props} />;
    case 'heatmap':
      return <Heat {...props} />;
    case 'table':
      return <Rows {...props} />;
    default:
      throw new Error(`cannot draw a ${props.panel.type}`);
  }
}

/** "10 minutes" and the like. */
export function durationOf(seconds: number): string {
  return formattedValueToString(getValueFormat('s')(seconds, 0));
}
