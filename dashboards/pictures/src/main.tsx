// A dashboard, asked and drawn once.

import { ThemeContext, createTheme } from '@grafana/data';
import { GlobalStyles, PanelChrome } from '@grafana/ui';
import { flushSync } from 'react-dom';
import { createRoot } from 'react-dom/client';
import type { Panel, Series } from './frames';
import { Content, durationOf } from './panels';
import { type Setting, curve, filledIn, instant, settingOf, spanOf } from './prometheus';

const COLUMNS = 24;
const ROW = 30;
const GAP = 8;
const MARGIN = 16;
const HEADER = 56;

interface Board {
  title: string;
  panels: Panel[];
  templating: { list: Array<{ name: string; label: string; type: string; hide: number }> };
}

interface Filled {
  panel: Panel;
  all: Series[];
}

const theme = createTheme({ colors: { mode: 'dark' } });

async function fill(board: Board, setting: Setting): Promise<Filled[]> {
  const all = board.templating.list.filter(({ type }) => type === 'query');
  // The longer name first: $run_name must not be taken for $run.
  const names = all.map(({ name }) => name).sort((one, two) => two.length - one.length);
  const made: Filled[] = [];
  for (const panel of board.panels) {
    const span = spanOf(setting, panel.timeFrom);
    const ranged = panel.type === 'timeseries' || panel.type === 'heatmap';
    const series: Series[] = [];
    for (const target of panel.targets ?? []) {
      const expr = filledIn(target.expr, setting, span, names);
      const found = ranged ? await curve(setting, expr, span) : await instant(setting, expr);
      series.push(...found.map((sample) => ({ target: { ...target, expr }, sample })));
    }
    made.push({ panel, all: series });
  }
  return made;
}

function Header({ board, setting }: { board: Board; setting: Setting }) {
  const { colors } = theme;
  const chip = {
    border: `1px solid ${colors.border.medium}`,
    borderRadius: 4,
    padding: '3px 10px',
    background: colors.background.primary,
  };
  const shown = board.templating.list.filter(({ type, hide }) => type === 'query' && !hide);
  const { from, to } = setting.span;
  return (
    <header
      style={{ display: 'flex', alignItems: 'center', gap: 12, height: HEADER, padding: `0 ${MARGIN}px` }}
    >
      <span style={{ fontSize: 20, fontWeight: 500, marginRight: 12 }}>{board.title}</span>
      {shown.map(({ name, label }) => (
        <span key={name} style={{ ...chip, color: colors.text.secondary }}>
          {label} <b style={{ color: colors.text.primary }}>All</b>
        </span>
      ))}
      <span style={{ ...chip, marginLeft: 'auto' }}>Last {durationOf(to - from)} (UTC)</span>
    </header>
  );
}

function Page({ board, setting, filled }: { board: Board; setting: Setting; filled: Filled[] }) {
  const column = (window.innerWidth - 2 * MARGIN + GAP) / COLUMNS;
  const rows = Math.max(...filled.map(({ panel }) => panel.gridPos.y + panel.gridPos.h));
  return (
    <>
      <Header board={board} setting={setting} />
      <main style={{ position: 'relative', height: rows * (ROW + GAP) + MARGIN }}>
        {filled.map(({ panel, all }) => {
          const { x, y, w, h } = panel.gridPos;
          const width = Math.floor(w * column - GAP);
          const height = h * (ROW + GAP) - GAP;
          const place = {
            position: 'absolute' as const,
            left: MARGIN + x * column,
            top: y * (ROW + GAP),
            width,
            height,
          };
          return (
            <div key={panel.id} style={place}>
              {panel.type === 'row' ? (
                <h2 style={{ fontSize: 16, fontWeight: 500, lineHeight: `${height}px`, margin: 0 }}>
                  {panel.title}
                </h2>
              ) : (
                <PanelChrome
                  title={panel.title}
                  description={panel.description}
                  width={width}
                  height={height}
                >
                  {(inner, outer) => (
                    <Content {...{ panel, all, setting, theme }} width={inner} height={outer} />
                  )}
                </PanelChrome>
              )}
            </div>
          );
        })}
      </main>
    </>
  );
}

async function draw(root: HTMLElement): Promise<void> {
  const setting = settingOf(window.location.search);
  const board: Board = await (await fetch(`boards/${setting.board}.json`)).json();
  const filled = await fill(board, setting);
  const empty = filled.filter(({ panel, all }) => panel.type !== 'row' && all.length === 0);
  flushSync(() =>
    createRoot(root).render(
      <ThemeContext.Provider value={theme}>
        <GlobalStyles />
        <Page board={board} setting={setting} filled={filled} />
      </ThemeContext.Provider>
    )
  );
  await tell({ empty: empty.map(({ panel }) => panel.title) });
}

/** render.py wants to know. */
async function tell(what: { empty: string[] } | { error: string }): Promise<void> {
  await fetch('told', { method: 'POST', body: JSON.stringify(what) });
}

const root = document.getElementById('root')!;
draw(root).catch((error: unknown) => {
  root.textContent = String(error);
  return tell({ error: String(error) });
});
