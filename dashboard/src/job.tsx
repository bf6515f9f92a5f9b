// What runs, by worker: how far each job is, how long steps take against what was predicted, and where a step's time goes.

import type { Hues } from './devices.tsx';
import { against, seconds } from './format.ts';
import { Bytes, Hue, Nothing, Seconds } from './pieces.tsx';
import { blockTimes, total, type Time } from './profile.ts';
import { send, type EndedJob, type Model, type ModelRun, type RunningJob, type Stats, type Worker } from './wire.ts';

interface Props {
  stats: Stats;
  models: Model[];
  hues: Hues;
  /** The numbers of the latest pictures of what is being made, by job. */
  previews: Record<string, number>;
  refresh: () => Promise<void>;
}

export function Job({ stats, models, hues, previews, refresh }: Props) {
  if (stats.workers.length > 1) return <Workers stats={stats} models={models} hues={hues} previews={previews} refresh={refresh} />;
  const ended = stats.jobs.at(-1);
  const job = stats.running ?? ended;
  // The model that takes longest is the one whose step people wait for.
  const main = job?.models.toSorted((a, b) => cost(b) - cost(a))[0];
  const model = models.find((one) => one.id === main?.id);
  return (
    <section aria-labelledby="job">
      <h2 id="job">
        {stats.running ? 'Running job' : 'Latest job'}
      </h2>
      {stats.running ? (
        <Running job={stats.running} preview={previews[stats.running.prompt_id] ?? null} refresh={refresh} />
      ) : (
        <Idle stats={stats} />
      )}
      {job && <Took job={job} hues={hues} />}
      {model && <Profile model={model} />}
    </section>
  );
}

/** One after the other, what each worker does. */
function Workers({ stats, models, hues, previews, refresh }: Props) {
  const running = stats.workers.filter((worker) => worker.running !== null).length;
  const latest = running === 0 ? stats.jobs.at(-1) : undefined;
  return (
    <section aria-labelledby="job">
      <h2 id="job">
        {running === 0 ? 'No running job' : running === 1 ? '1 running job' : `${running} running jobs`}{' '}
        <small>{stats.workers.length} workers</small>
      </h2>
      {stats.workers.map((worker) => (
        <WorkerPart key={worker.device} worker={worker} models={models} hues={hues} previews={previews} refresh={refresh} />
      ))}
      {running === 0 && <Idle stats={stats} />}
      {latest && <Took job={latest} hues={hues} />}
    </section>
  );
}

function WorkerPart({ worker, models, hues, previews, refresh }: { worker: Worker } & Omit<Props, 'stats'>) {
  const job = worker.running;
  const main = job?.models.toSorted((a, b) => cost(b) - cost(a))[0];
  const model = models.find((one) => one.id === main?.id);
  return (
    <div class="worker" role="group" data-worker={worker.device} aria-label={`Worker ${worker.device}`}>
      <h3>{worker.device}</h3>
      {job ? (
        <>
          <Running job={job} preview={previews[job.prompt_id] ?? null} refresh={refresh} />
          <Took job={job} hues={hues} />
          {model && <Profile model={model} />}
        </>
      ) : (
        <Nothing>idle</Nothing>
      )}
    </div>
  );
}

function Idle({ stats }: { stats: Stats }) {
  const ended = stats.jobs.at(-1);
  return (
    <Nothing>
      {ended
        ? `Nothing runs now. The latest job took ${seconds(ended.seconds)}.`
        : 'Nothing has run yet. Queue a workflow from the front end or with POST /prompt.'}
    </Nothing>
  );
}

/** What a job's models took, and what was streamed for them. */
function Took({ job, hues }: { job: RunningJob | EndedJob; hues: Hues }) {
  return (
    <>
      {job.models.length > 0 && <Runs runs={job.models} hues={hues} />}
      {(job.streamed_bytes > 0 || job.stalls > 0) && (
        <p class="detail">
          <Bytes count={job.streamed_bytes} /> streamed, {job.stalls} {job.stalls === 1 ? 'stall' : 'stalls'} of{' '}
          <Seconds value={job.stalled_seconds} /> together
        </p>
      )}
    </>
  );
}

function cost(run: ModelRun): number {
  return run.steps * run.measured_seconds_per_step;
}

function Running({ job, preview, refresh }: { job: RunningJob; preview: number | null; refresh: () => Promise<void> }) {
  const stop = async (): Promise<void> => {
    await send('POST', `../api/jobs/${job.prompt_id}/cancel`).catch(() => undefined);
    await refresh();
  };
  return (
    <div class={preview === null ? 'running' : 'running with-picture'} data-prompt={job.prompt_id}>
      {/* The number makes each picture an address of its own, so that the browser asks for every one once. */}
      {preview !== null && <img class="preview" src={`preview?prompt_id=${job.prompt_id}&number=${preview}`} alt="What is being made, as it is now" />}
      <div>
        <p class="detail">
          <code title={job.prompt_id}>{job.prompt_id.slice(0, 8)}</code> for {seconds(job.seconds)}
          {job.nodes_done > 0 && `, ${job.nodes_done} ${job.nodes_done === 1 ? 'node' : 'nodes'} done`}
          <button type="button" class="stop" aria-label={job.worker === null ? 'Cancel the running job' : `Cancel the running job of ${job.worker}`} onClick={() => void stop()}>
            Cancel
          </button>
        </p>
        {job.nodes.map((node) => {
          const left = node.seconds_per_step === null ? undefined : (node.max - node.value) * node.seconds_per_step;
          const isStepping = node.max > 0;
          const said = isStepping ? `${node.value} of ${node.max}` : 'working';
          return (
            <div key={node.node} class="progress" data-node={node.node}>
              <p>
                <strong>{node.class}</strong> <span class="detail">node {node.node}</span>
                <span class="right number">
                  {isStepping ? (
                    <>
                      step <span data-step={node.value}>{node.value}</span> / {node.max}
                      {left !== undefined && left > 0 && `, ${seconds(left)} left`}
                    </>
                  ) : (
                    seconds(node.seconds)
                  )}
                </span>
              </p>
              <div
                class={isStepping ? 'track' : 'track unknown'}
                role="progressbar"
                aria-label={`${node.class}, node ${node.node}`}
                aria-valuemin={0}
                {...(isStepping && { 'aria-valuemax': node.max, 'aria-valuenow': node.value })}
                aria-valuetext={said}
              >
                <i style={{ width: isStepping ? `${(100 * node.value) / node.max}%` : '100%' }} />
              </div>
            </div>
          );
        })}
      </div>
    </div>
  );
}

/** Predicted against measured, for every model that the job evaluated. */
function Runs({ runs, hues }: { runs: ModelRun[]; hues: Hues }) {
  return (
    <div class="scroll">
      <table class="runs">
        <caption class="unseen">Seconds per step, predicted and measured</caption>
        <thead>
          <tr>
            <th scope="col">per step</th>
            <th scope="col">steps</th>
            <th scope="col">predicted</th>
            <th scope="col">measured</th>
            <th scope="col" />
          </tr>
        </thead>
        <tbody>
          {runs.map((run) => (
            <tr key={run.id} data-run={run.name}>
              <th scope="row">
                <Hue of={hues.get(run.id)} /> {run.name}
              </th>
              <td class="number">{run.steps}</td>
              <td data-predicted={run.predicted_seconds_per_step}>
                <Seconds value={run.predicted_seconds_per_step} />
              </td>
              <td data-measured={run.measured_seconds_per_step}>
                <Seconds value={run.measured_seconds_per_step} />
              </td>
              {/* A single evaluation is mostly warming up: there is nothing to compare. */}
              <td class="detail">
                {run.steps > 1 && against(run.measured_seconds_per_step, run.predicted_seconds_per_step)}
                {run.coded_steps > 0 && (
                  <span data-coded-steps={run.coded_steps}>
                    {' '}
                    {run.coded_steps} of {run.steps} steps with coded weights: <Bytes count={run.decoded_bytes} /> decoded,{' '}
                    {(100 * run.decoding_share).toFixed(1)} % of a step
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** One column per block: what it computed, how long its weights were copied, and how long it waited for them. */
function Profile({ model }: { model: Model }) {
  const { times, isMeasured } = blockTimes(model);
  const sum = total(times);
  const above = Math.max(...times.map((time) => (time ? time.compute_s + time.decode_s + time.stall_s : 0)));
  const below = Math.max(...times.map((time) => time?.copy_s ?? 0));
  if (!(above > 0)) return null;
  // Both halves have one scale; copies much shorter than computing are still to be seen.
  const scale = above + Math.max(below, above / 8);
  const high = (value: number) => `${(100 * value) / scale}%`;
  return (
    <figure class="profile">
      <figcaption>
        {isMeasured ? 'Latest step' : 'Predicted step'} of {model.name}:{' '}
        <Part kind="compute" value={sum.compute_s} />,{' '}
        {sum.decode_s > 0 && <Part kind="decode" value={sum.decode_s} />}
        {sum.decode_s > 0 && ', '}
        <Part kind="stall" value={sum.stall_s} />, below the line{' '}
        <Part kind="copy" value={sum.copy_s} />
      </figcaption>
      <div class="columns" role="img" aria-label={`Time by block; ${worded(sum)}`}>
        {model.plan.blocks.map((block, index) => {
          const time = times[index] ?? { compute_s: 0, decode_s: 0, copy_s: 0, stall_s: 0 };
          return (
            <div key={block.name} title={`${block.name}, ${block.mode}: ${worded(time)}`}>
              <i style={{ height: high(above - time.compute_s - time.decode_s - time.stall_s) }} />
              <i class="stall" style={{ height: high(time.stall_s) }} />
              {time.decode_s > 0 && <i class="decode" style={{ height: high(time.decode_s) }} />}
              <i class="compute" style={{ height: high(time.compute_s) }} />
              {/* What is below the line hangs from it, whatever stands above. */}
              <i class="copy" style={{ height: high(time.copy_s) }} />
            </div>
          );
        })}
      </div>
      <div class="axis" aria-hidden="true">
        <span>{model.plan.blocks[0]?.name}</span>
        <span>{model.plan.blocks.at(-1)?.name}</span>
      </div>
    </figure>
  );
}

function Part({ kind, value }: { kind: string; value: number }) {
  return (
    <span class="nowrap" data-profile={kind}>
      <i class={`swatch ${kind}`} aria-hidden="true" /> {kind} <Seconds value={value} />
    </span>
  );
}

function worded(time: Time): string {
  const decoding = time.decode_s > 0 ? `, decode ${seconds(time.decode_s)}` : '';
  return `compute ${seconds(time.compute_s)}${decoding}, copy ${seconds(time.copy_s)}, stall ${seconds(time.stall_s)}`;
}
