// Every device as a bar, and what is on it.

import { Bytes, Hue } from './pieces.tsx';
import { headroom, holdings, merged, parts, sum, type Holding, type Part, type PieceKind } from './contents.ts';
import { bytes, exactBytes, percent } from './format.ts';
import type { Device, Model } from './wire.ts';

/** More cells than this are narrower than a pixel on most screens. */
const CELLS = 160;

const KINDS: Record<PieceKind, string> = {
  resident: 'resident',
  donor: 'streamed from here',
  pinned: 'ready to copy',
  mapped: 'in its file',
  ring: 'passing through',
};

const PARTS: Record<Exclude<Part['kind'], 'model'>, string> = {
  other: 'in use, not weights',
  reserved: 'reserved',
  cached: 'cached',
  outside: 'other programs',
  free: 'free',
};

export function Devices({ devices, models, hues }: { devices: Device[]; models: Model[]; hues: Hues }) {
  const kinds = new Set<PieceKind>();
  const rows = devices.map((device) => {
    const held = holdings(device.id, models);
    held.forEach((holding) => holding.pieces.forEach((piece) => kinds.add(piece.kind)));
    return <DeviceRow key={device.id} device={device} held={held} hues={hues} />;
  });
  return (
    <section aria-labelledby="devices">
      <h2 id="devices">Devices</h2>
      {rows}
      <p class="legend" aria-hidden="true">
        {[...kinds].map((kind) => (
          <span key={kind}>
            <i class={`swatch ${kind}`} /> {KINDS[kind]}
          </span>
        ))}
        {(['other', 'cached', 'outside', 'free'] as const).map((kind) => (
          <span key={kind}>
            <i class={`swatch part-${kind}`} /> {PARTS[kind]}
          </span>
        ))}
      </p>
    </section>
  );
}

/** The hue of each model, by its id. */
export type Hues = Map<number, number>;

function DeviceRow({ device, held, hues }: { device: Device; held: Holding[]; hues: Hues }) {
  const list = parts(device, held);
  const said = held.map(({ model, bytes: count }) => `${model.name} ${bytes(count)}`).join(', ') || 'no model';
  const label =
    `${device.id}: ${bytes(device.used_bytes)} in use of a budget of ${bytes(device.budget_bytes)}, ` +
    `${bytes(headroom(device))} headroom; ${said}`;
  return (
    <article class="device" data-device={device.id}>
      <header>
        <h3>{device.id}</h3>
        <span class="name">{device.name}</span>
        {device.simulated && <span class="tag">simulated</span>}
        {device.busy_percent != null && (
          <span class="tag sensor" data-busy={device.busy_percent}>
            {device.busy_percent} % busy
          </span>
        )}
        {device.celsius != null && (
          <span class="tag sensor" data-celsius={device.celsius}>
            {device.celsius} °C
          </span>
        )}
        <span class="detail">{device.detail.replace(/^simulation: /, '')}</span>
      </header>
      <div class="gauge" role="img" aria-label={label}>
        {list.map((part) => (
          <GaugePart key={`${part.kind}${part.id ?? ''}`} part={part} held={held} hues={hues} />
        ))}
        {device.budget_bytes < device.total_bytes && (
          <b
            class="budget"
            style={{ left: `${(100 * device.budget_bytes) / device.total_bytes}%` }}
            title={`budget: ${exactBytes(device.budget_bytes)}`}
          />
        )}
      </div>
      <dl class="figures">
        <Figure name="in use" count={device.used_bytes} of={device.budget_bytes} data="used" />
        {device.reserved_bytes > 0 && <Figure name="reserved" count={device.reserved_bytes} data="reserved" />}
        {device.cached_bytes > 0 && <Figure name="cached" count={device.cached_bytes} data="cached" />}
        <Figure name="headroom" count={headroom(device)} data="headroom" />
        <Figure name="budget" count={device.budget_bytes} data="budget" />
        <Figure name="peak" count={device.peak_bytes} data="peak" />
      </dl>
      {held.length > 0 && <Held held={held} hues={hues} />}
    </article>
  );
}

function GaugePart({ part, held, hues }: { part: Part; held: Holding[]; hues: Hues }) {
  const model = held.find((holding) => holding.model.id === part.id)?.model;
  const name = part.kind === 'model' ? (model?.name ?? '') : PARTS[part.kind];
  const hue = part.id === undefined ? '' : ` hue-${hues.get(part.id) ?? 0}`;
  return (
    <i
      class={`part-${part.kind}${hue}`}
      style={{ flexGrow: part.bytes }}
      title={`${name}: ${bytes(part.bytes)} (${exactBytes(part.bytes)})`}
    />
  );
}

function Figure({ name, count, of, data }: { name: string; count: number; of?: number; data: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd data-figure={data}>
        <Bytes count={count} />
        {of !== undefined && count > 0 && <small> {percent(count, of)}</small>}
      </dd>
    </div>
  );
}

/** The models on a device, block by block, as wide as they are large among themselves. */
function Held({ held, hues }: { held: Holding[]; hues: Hues }) {
  const all = sum(held.map((holding) => holding.bytes));
  return (
    <>
      <div class="blocks" aria-hidden="true">
        {held.map(({ model, bytes: count, pieces }) => (
          <div key={model.id} class={`hue-${hues.get(model.id) ?? 0}`} style={{ flexGrow: count }}>
            {merged(pieces, Math.max(8, Math.round((CELLS * count) / all))).map((run) => (
              <i
                key={`${run.first}${run.kind}`}
                class={run.kind}
                style={{ flexGrow: run.bytes }}
                title={
                  `${model.name}: ${run.count > 1 ? `${run.first} to ${run.last}` : run.first}, ` +
                  `${KINDS[run.kind]}, ${bytes(run.bytes)} (${exactBytes(run.bytes)})`
                }
              />
            ))}
          </div>
        ))}
      </div>
      <ul class="held">
        {held.map(({ model, bytes: count, pieces }) => (
          <li key={model.id} data-held={model.name} data-bytes={count}>
            <Hue of={hues.get(model.id)} /> {model.name} <Bytes count={count} />
            <small> {counted(pieces.map((piece) => piece.kind))}</small>
          </li>
        ))}
      </ul>
    </>
  );
}

/** `3 resident, 2 streamed from here, 3 places to pass through`. */
function counted(kinds: PieceKind[]): string {
  const counts = new Map<PieceKind, number>();
  for (const kind of kinds) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts]
    .map(([kind, count]) => (kind === 'ring' ? `${count} places to pass through` : `${count} ${KINDS[kind]}`))
    .join(', ');
}
