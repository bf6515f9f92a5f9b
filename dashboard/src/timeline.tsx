// Memory over time, device by device, with the phases that the server noted.

import { bytes, clock, exactBytes } from './format.ts';
import { areaUnder, stepPath, stretch, type History, type Phase } from './history.ts';
import { Bytes, Nothing } from './pieces.tsx';
import type { Device } from './wire.ts';

const BOX = { width: 600, height: 40 };
/** Phases in the list below the lines. */
const LISTED = 8;

export function Timeline({ devices, history }: { devices: Device[]; history: History }) {
  const now = Date.now();
  const phases = history.phases();
  const span = stretch(now, Math.min(history.samples[0]?.at ?? now, phases[0]?.at ?? now));
  const marks = marked(phases.filter((phase) => phase.at >= span[0]));
  const left = (at: number) => (100 * (at - span[0])) / (span[1] - span[0]);
  return (
    <section aria-labelledby="timeline">
      <h2 id="timeline">Memory over time</h2>
      <div class="timeline">
        {devices.map((device) => {
          const points = history.points(device.id);
          // The strip reaches to the budget, as the bar of the device does, so that both look alike when they say the same.
          const top = device.budget_bytes;
          const most = Math.max(...points.map((point) => point.bytes), 0);
          const line = stepPath(points, span, top, BOX);
          const said = `${device.id}: ${bytes(device.used_bytes)} in use of ${bytes(top)}, at most ${bytes(most)} in this stretch`;
          return (
            <div key={device.id} class="lane">
              <b>{device.id}</b>
              <svg
                viewBox={`0 -2 ${BOX.width} ${BOX.height + 4}`}
                preserveAspectRatio="none"
                role="img"
                aria-label={said}
              >
                <path class="area" d={areaUnder(line, BOX.height)} />
                <path class="line" d={line} />
                {marks.map(({ at }) => (
                  <line key={at} class="mark" x1={left(at) * 6} x2={left(at) * 6} y1={-2} y2={BOX.height + 2} />
                ))}
              </svg>
              <span class="scale" title={`at most ${exactBytes(most)} in this stretch`}>
                <span class="number" data-top={top}>
                  {bytes(top)}
                </span>
                <span class="number now" data-now={device.used_bytes}>
                  {bytes(device.used_bytes)}
                </span>
              </span>
            </div>
          );
        })}
        {marks.length > 0 && (
          <div class="lane marks" aria-hidden="true">
            <b />
            <div>
              {marks.map(({ at, number }) => (
                <i key={at} class="badge" style={{ left: `${left(at)}%` }}>
                  {number}
                </i>
              ))}
            </div>
            <span />
          </div>
        )}
        <div class="lane axis">
          <b />
          <div>
            <span>{clock(span[0])}</span>
            <span>now</span>
          </div>
          <span class="detail">in use now</span>
        </div>
      </div>
      {phases.length === 0 ? (
        <Nothing>Models that come and leave, jobs and the phases of a free request are marked here from now on.</Nothing>
      ) : (
        <Phases devices={devices} phases={phases} marks={marks} />
      )}
    </section>
  );
}

interface Mark {
  at: number;
  number: number;
  keys: Set<string>;
}

/** Phases of one moment share a mark: those of a free request are milliseconds apart. */
function marked(phases: Phase[]): Mark[] {
  const marks: Mark[] = [];
  for (const { key, at } of phases) {
    const last = marks.at(-1);
    if (last && at - last.at < 2000) last.keys.add(key);
    else marks.push({ at, number: marks.length + 1, keys: new Set([key]) });
  }
  return marks;
}

function Phases({ devices, phases, marks }: { devices: Device[]; phases: Phase[]; marks: Mark[] }) {
  return (
    <div class="scroll">
      <table class="phases">
        <caption class="unseen">Phases, the latest first</caption>
        <thead>
          <tr>
            <th scope="col">phase</th>
            {devices.map((device) => (
              <th key={device.id} scope="col">
                {device.id}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {phases
            .slice(-LISTED)
            .reverse()
            .map((phase) => {
              const mark = marks.find((one) => one.keys.has(phase.key));
              return (
                <tr key={phase.key}>
                  <th scope="row" title={new Date(phase.at).toISOString()}>
                    <span class="badge">{mark?.number ?? '·'}</span> <span class="number">{clock(phase.at)}</span> {phase.label}
                  </th>
                  {devices.map((device) => (
                    <td key={device.id}>
                      <Bytes count={phase.used[device.id] ?? 0} />
                    </td>
                  ))}
                </tr>
              );
            })}
        </tbody>
      </table>
    </div>
  );
}
