// The page.

import { render } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { Devices, type Hues } from './devices.tsx';
import { Job } from './job.tsx';
import { useLive } from './live.ts';
import { Models } from './models.tsx';
import { Planner } from './planner.tsx';
import { Errors, Queue } from './queue.tsx';
import { Timeline } from './timeline.tsx';
import type { Device, Model, Stats } from './wire.ts';

const HUES = 8;

/** A gantry: the beam, its legs, and what hangs from it. */
function Mark() {
  return (
    <svg class="logo" viewBox="0 0 16 16" aria-hidden="true">
      <path d="M1 2h14v3H1zM3 5h2v9H3zM11 5h2v9h-2zM7 5h2v4H7z" />
    </svg>
  );
}

/** A hue for every model, which stays as long as the model does; a new one takes a hue that no other has. */
function useHues(models: Model[]): Hues {
  const [hues] = useState<Hues>(() => new Map());
  return useMemo(() => {
    const here = new Set(models.map((model) => model.id));
    for (const id of hues.keys()) if (!here.has(id)) hues.delete(id);
    for (const { id } of models) {
      if (hues.has(id)) continue;
      const taken = new Set(hues.values());
      const free = Array.from({ length: HUES }, (_, hue) => hue).find((hue) => !taken.has(hue));
      hues.set(id, free ?? id % HUES);
    }
    return new Map(hues);
  }, [models]);
}

/** The list of devices that the planner offers changes only when devices do, not with every byte. */
function useSameDevices(devices: Device[]): Device[] {
  const key = devices.map((device) => device.id).join();
  return useMemo(() => devices, [key]);
}

/** How far the job is, for those who have the page beside another window. */
function useTitle(stats: Stats | undefined): void {
  const node = stats?.running?.nodes.find((one) => one.max > 0);
  const title = node ? `${Math.floor((100 * node.value) / node.max)} % Gantry` : 'Gantry';
  useEffect(() => {
    document.title = title;
  }, [title]);
}

function Page() {
  const [{ live, problem }, refresh] = useLive();
  const { devices = [], models = [], stats, queue = [], errors = [], previews = {} } = live ?? {};
  useTitle(stats);
  const hues = useHues(models);
  const planned = useSameDevices(devices);
  // Parts that nothing changed for are not drawn anew.
  const devicesPart = useMemo(() => <Devices devices={devices} models={models} hues={hues} />, [devices, models, hues]);
  const modelsPart = useMemo(
    () => stats && <Models models={models} stats={stats} hues={hues} refresh={refresh} />,
    [models, stats, hues],
  );
  const jobPart = useMemo(
    () => stats && <Job stats={stats} models={models} hues={hues} previews={previews} refresh={refresh} />,
    [models, stats, hues, previews],
  );
  const waiting = stats?.waiting ?? 0;
  const queuePart = useMemo(() => <Queue queue={queue} waiting={waiting} refresh={refresh} />, [queue, waiting]);
  const errorsPart = useMemo(() => <Errors errors={errors} />, [errors]);
  const isIdle = stats?.running === null;
  const latest = stats?.running?.prompt_id ?? stats?.jobs.at(-1)?.prompt_id;
  const plannerPart = useMemo(
    () => <Planner devices={planned} isIdle={isIdle} latest={latest} />,
    [planned, isIdle, latest],
  );
  return (
    <>
      <header class="top">
        <h1>
          <Mark /> Gantry
        </h1>
        <nav aria-label="Parts of this page">
          <a href="#job">Job</a>
          <a href="#queue">Queue</a>
          <a href="#devices">Devices</a>
          <a href="#models">Models</a>
          <a href="#timeline">Memory</a>
          <a href="#planner">Planner</a>
          <a href="../">Front end</a>
        </nav>
        <p role="status" class={live && !problem ? 'live' : 'live off'}>
          {problem ?? (live ? 'live' : 'connecting')}
        </p>
      </header>
      {live && stats && (
        <main>
          <div>
            {jobPart}
            {queuePart}
            {errorsPart}
            <Timeline devices={devices} history={live.history} />
            {plannerPart}
          </div>
          <div>
            {devicesPart}
            {modelsPart}
          </div>
        </main>
      )}
    </>
  );
}

const place = document.getElementById('page');
if (place) {
  place.replaceChildren();
  render(<Page />, place);
}
