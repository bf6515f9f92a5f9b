// The loaded models: where they are, whether they stay, and what their blocks do in a step.

import { useState } from 'preact/hooks';
import type { Hues } from './devices.tsx';
import { coded, codingState, homeOf, kindOf } from './contents.ts';
import { clock } from './format.ts';
import { blockTimes } from './profile.ts';
import { FREED, outcome, type FreeOutcome, type FreeRequest } from './free.ts';
import { Bytes, Hue, Nothing, Seconds } from './pieces.tsx';
import { ask, send, type Model, type Retention, type Snapshot, type Stats } from './wire.ts';

const RETENTIONS: { value: Retention; title: string }[] = [
  { value: 'keep', title: 'Stays when models are asked to leave; only force takes it' },
  { value: 'default', title: 'Leaves when no model is marked to go first' },
  { value: 'eject', title: 'Leaves first when models are asked to leave' },
];

interface Props {
  models: Model[];
  stats: Stats;
  hues: Hues;
  refresh: () => Promise<void>;
}

export function Models({ models, stats, hues, refresh }: Props) {
  const [problem, setProblem] = useState('');
  const act = async (action: Promise<void>): Promise<void> => {
    try {
      await action;
      setProblem('');
    } catch (error) {
      setProblem(String((error as Error).message));
    }
    await refresh();
  };
  return (
    <section aria-labelledby="models">
      <h2 id="models">
        Loaded models <small>{models.length > 0 && models.length}</small>
      </h2>
      <FreeButtons models={models} running={stats.running !== null} refresh={refresh} />
      <p role="alert" class="problem">
        {problem}
      </p>
      {stats.kept_models_missing > 0 && (
        <p class="problem">{stats.kept_models_missing} models that were to be kept are gone; the log says which.</p>
      )}
      {models.length === 0 ? (
        <Nothing>
          No model is loaded. Run a workflow, and its models appear here and on the devices that they use.
        </Nothing>
      ) : (
        <ul class="models">
          {models.map((model) => (
            <ModelRow key={model.id} model={model} hue={hues.get(model.id)} act={act} />
          ))}
        </ul>
      )}
    </section>
  );
}

function ModelRow({ model, hue, act }: { model: Model; hue: number | undefined; act: (action: Promise<void>) => void }) {
  const { plan } = model;
  const places = Object.entries(model.bytes);
  return (
    <li class="model" data-model={model.name} data-id={model.id}>
      <div class="what">
        <strong>
          <Hue of={hue} /> {model.name}
        </strong>
        <span class="detail">
          {model.family}, computes on {plan.compute}
        </span>
        <span class="places">
          {model.staged
            ? places.map(([device, count]) => (
                <span key={device} class="chip" data-place={device} data-bytes={count}>
                  {device} <Bytes count={count} />
                </span>
              ))
            : 'registered; its copies come back when it is used'}
        </span>
      </div>
      <fieldset class="switch">
        <legend>when memory is asked for</legend>
        {RETENTIONS.map(({ value, title }) => (
          <label key={value} title={title}>
            <input
              type="radio"
              name={`retention-${model.id}`}
              value={value}
              checked={model.retention === value}
              onChange={() => act(send('PATCH', `models/${model.id}`, { retention: value }))}
            />
            <span>{value}</span>
          </label>
        ))}
      </fieldset>
      <button
        type="button"
        class="eject"
        title="Unload it now, whatever its switch says"
        aria-label={`Unload ${model.name} now`}
        onClick={() => act(send('DELETE', `models/${model.id}`))}
      >
        Unload now
      </button>
      <Blocks model={model} />
    </li>
  );
}

/** Every block with its place; the table is made only when it is asked for. */
function Blocks({ model }: { model: Model }) {
  const [isOpen, setOpen] = useState(false);
  const { plan } = model;
  const streamed = plan.blocks.filter((block) => block.mode === 'streamed').length;
  const inCode = coded(plan.blocks);
  const { times, isMeasured } = blockTimes(model);
  return (
    <details onToggle={(event) => setOpen((event.target as HTMLDetailsElement).open)}>
      <summary>
        {plan.blocks.length} blocks{streamed > 0 && `, ${streamed} of them streamed`}
        {plan.ring && plan.ring.slots > 0 && ` through ${plan.ring.slots} places of `}
        {plan.ring && plan.ring.slots > 0 && <Bytes count={plan.ring.slot_bytes} />}
        {inCode.blocks > 0 && (
          <span data-coded={inCode.blocks}>
            , {inCode.blocks} of <Bytes count={inCode.plain} /> coded in <Bytes count={inCode.coded} />
            {model.coding && <span data-coding={model.coding.state}> ({codingState(model.coding)})</span>}
          </span>
        )}
      </summary>
      {isOpen && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Blocks of ${model.name}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">block</th>
                <th scope="col">bytes</th>
                {inCode.blocks > 0 && <th scope="col">coded</th>}
                <th scope="col">home</th>
                <th scope="col">runs on</th>
                <th scope="col">how</th>
                <th scope="col">compute</th>
                <th scope="col">copy</th>
                <th scope="col">stall</th>
              </tr>
            </thead>
            <tbody>
              {plan.blocks.map((block, index) => {
                const time = times[index];
                return (
                  <tr key={block.name}>
                    <th scope="row">{block.name}</th>
                    <td>
                      <Bytes count={block.bytes} />
                    </td>
                    {inCode.blocks > 0 && <td>{block.coded_bytes !== undefined && <Bytes count={block.coded_bytes} />}</td>}
                    <td>{homeOf(block)}</td>
                    <td>{block.runs_on}</td>
                    <td>{block.mode === 'streamed' ? 'streamed' : kindOf(block, plan.compute)}</td>
                    <td>{time && <Seconds value={time.compute_s} />}</td>
                    <td>{time && <Seconds value={time.copy_s} />}</td>
                    <td>{time && <Seconds value={time.stall_s} />}</td>
                  </tr>
                );
              })}
            </tbody>
          </table>
          <p class="detail">{isMeasured ? 'Times are those of its latest step.' : 'Times are those of the plan.'}</p>
        </div>
      )}
      {plan.notes.map((note) => (
        <p key={note} class="detail">
          {note}
        </p>
      ))}
    </details>
  );
}

type FreeState = { says: string } | { outcome: FreeOutcome; at: number } | undefined;

/** Both memory buttons. A request waits for the job that runs, so what came of it is looked for in the snapshots. */
function FreeButtons({ models, running, refresh }: { models: Model[]; running: boolean; refresh: () => Promise<void> }) {
  const [force, setForce] = useState(false);
  const [state, setState] = useState<FreeState>(undefined);
  const press = async (request: FreeRequest): Promise<void> => {
    const asked: FreeRequest = force ? { ...request, force: true } : request;
    setState({ says: running ? 'Waiting for the running job to end…' : 'Freeing…' });
    try {
      const { snapshots } = await ask<{ snapshots: Snapshot[] }>('snapshots');
      const after = snapshots.at(-1)?.number;
      await send('POST', '../free', asked);
      const taken = await freed(after);
      const { models: left } = await ask<{ models: Model[] }>('models');
      setState({ outcome: outcome(models, left, taken), at: Date.now() });
    } catch (error) {
      setState({ says: String((error as Error).message) });
    }
    await refresh();
  };
  return (
    <div class="free">
      <button type="button" onClick={() => press({ unload_models: true })} title="Let models leave; what nodes computed stays cached">
        Unload models
      </button>
      <button
        type="button"
        onClick={() => press({ unload_models: true, free_memory: true })}
        title="Let models leave and forget what nodes computed"
      >
        Free models and node cache
      </button>
      <label title="Kept models leave too">
        <input type="checkbox" checked={force} onChange={(event) => setForce(event.currentTarget.checked)} />
        force: kept ones too
      </label>
      <output aria-live="polite">
        {state && ('says' in state ? state.says : <Outcome of={state.outcome} at={state.at} />)}
      </output>
    </div>
  );
}

/** Waits for the last snapshot of a free request, and gives those that it left. */
async function freed(after: number | undefined): Promise<Snapshot[]> {
  for (;;) {
    const { snapshots } = await ask<{ snapshots: Snapshot[] }>(after === undefined ? 'snapshots' : `snapshots?after=${after}`);
    if (snapshots.some((shot) => shot.label === FREED)) return snapshots;
    await new Promise((wake) => setTimeout(wake, 200));
  }
}

function Outcome({ of: { left, stayed, back }, at }: { of: FreeOutcome; at: number }) {
  return (
    <>
      <span class="number">{clock(at)}</span>{' '}
      <span data-left={left.join(',')}>
        {left.length === 0 ? 'No model left' : `${left.length} left: ${left.join(', ')}`}
        {back.length > 0 && ' ('}
        {back.map(({ device, bytes }, index) => (
          <span key={device}>
            {index > 0 && ', '}
            <Bytes count={bytes} /> back on {device}
          </span>
        ))}
        {back.length > 0 && ')'}.
      </span>{' '}
      {stayed.map(({ name, why }) => (
        <span key={name} data-stayed={name}>
          {name} stayed: it {why}.{' '}
        </span>
      ))}
      {left.length === 0 && stayed.length === 0 && 'None was loaded.'}
    </>
  );
}
