// The planner: pick a file, type an allocation or drag the split, see what it takes and how long a step would be.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { drawnBy } from './drawn.ts';
import { fieldOffset, handleAt, markedText, moveHandle, splitOf, splitText, type Split } from './allocation.ts';
import { homeOf } from './contents.ts';
import { bytes, exactBytes, percent } from './format.ts';
import { Bytes, Nothing, Seconds } from './pieces.tsx';
import { ask, askPlan, askTo, type Device, type Folder, type JobDetail, type Plan, type PlanAnswer, type PlanFault } from './wire.ts';

/** A pause in typing. */
const DEBOUNCE_MS = 150;

interface Choice {
  folder: string;
  name: string;
}

/** `latest`: the job that runs, or else the last that did. `isIdle`: nothing runs. The first plan measures devices, which is not to disturb a job that nobody asked to disturb. */
export function Planner({ devices, isIdle, latest }: { devices: Device[]; isIdle: boolean; latest: string | undefined }) {
  const [isWanted, setWanted] = useState(isIdle);
  const [folders, setFolders] = useState<Folder[] | undefined>(undefined);
  const [choice, setChoice] = useState<Choice | undefined>(undefined);
  const [compute, setCompute] = useState('');
  const [text, setText] = useState('');
  const [size, setSize] = useState('1024x1024');
  const [batch, setBatch] = useState('1');
  const [hasCfg, setCfg] = useState(false);
  const reread = async (): Promise<void> => {
    const found = await ask<{ folders: Folder[] }>('files').catch(() => undefined);
    if (!found) return;
    setFolders(found.folders);
    const first = found.folders.find((folder) => folder.files.length > 0);
    const file = first?.files[0];
    setChoice((before) => before ?? (first && file && { folder: first.folder, name: file.name }));
  };
  useEffect(() => void reread(), []);
  // What the latest job draws is what people want to compare a plan with, until they say otherwise.
  const isTyped = useRef(false);
  useEffect(() => {
    if (latest === undefined || isTyped.current) return;
    void ask<JobDetail>(`../api/jobs/${latest}`).then(
      (job) => {
        const drawn = drawnBy(job.workflow.prompt);
        if (!drawn || isTyped.current) return;
        setSize(drawn.size);
        setBatch(String(drawn.batch));
        setCfg(drawn.hasGuidance);
      },
      () => undefined,
    );
  }, [latest]);
  const question = useMemo(
    () =>
      isWanted && choice && {
        file: choice.name,
        folder: choice.folder,
        alloc: text,
        ...(compute && { compute }),
        ...(size.trim() && { size: size.trim() }),
        ...(whole(batch) && { batch: whole(batch)! }),
        cfg: hasCfg,
      },
    [isWanted, choice, text, compute, size, batch, hasCfg],
  );
  const { answer, isAsking } = usePlan(question || undefined);
  const plan = answer && 'plan' in answer ? answer.plan : undefined;
  // The handles stay where the last plan had them while a text is wrong.
  const lastPlan = useRef<Plan | undefined>(undefined);
  lastPlan.current = plan ?? lastPlan.current;
  const fault = answer && 'fault' in answer ? answer.fault : undefined;
  const isEmpty = folders?.every((folder) => folder.files.length === 0);
  return (
    <section aria-labelledby="planner" class="planner" onFocusIn={() => setWanted(true)}>
      <h2 id="planner">Planner</h2>
      {isEmpty && <NoFiles folders={folders ?? []} />}
      <div class="fields">
        <label class="wide">
          Model file
          <select
            value={choice && `${choice.folder}/${choice.name}`}
            onFocus={() => void reread()}
            onChange={(event) => setChoice(choiceOf(event.currentTarget.value))}
          >
            {folders?.map(({ folder, files }) =>
              files.length === 0 ? null : (
                <optgroup key={folder} label={folder}>
                  {files.map(({ name, bytes: count }) => (
                    <option key={name} value={`${folder}/${name}`}>
                      {name} ({count === null ? 'comes with Gantry' : bytes(count)})
                    </option>
                  ))}
                </optgroup>
              ),
            )}
          </select>
        </label>
        <label>
          Computes on
          <select value={compute} onChange={(event) => setCompute(event.currentTarget.value)}>
            <option value="">as usual</option>
            {devices.map((device) => (
              <option key={device.id} value={device.id}>
                {device.id}
              </option>
            ))}
          </select>
        </label>
        <label title="Width and height of the picture in pixels">
          Picture
          <input size={9} value={size} onInput={(event) => ((isTyped.current = true), setSize(event.currentTarget.value))} />
        </label>
        <label title="Pictures at once">
          Batch
          <input inputMode="numeric" size={3} value={batch} onInput={(event) => ((isTyped.current = true), setBatch(event.currentTarget.value))} />
        </label>
        <label title="With guidance, every step evaluates two conditionings">
          Guidance (cfg)
          <input type="checkbox" checked={hasCfg} onChange={(event) => ((isTyped.current = true), setCfg(event.currentTarget.checked))} />
        </label>
      </div>
      <SplitBar devices={devices} plan={lastPlan.current} onSplit={setText} />
      <AllocationField text={text} setText={setText} fault={fault} />
      {plan && choice && <SendToWorkflow file={choice.name} alloc={text} compute={compute} />}
      {!isWanted && <Nothing>Choose a file, type an allocation or move a handle to see a plan.</Nothing>}
      {plan && <Outcome plan={plan} devices={devices} isAsking={isAsking} />}
    </section>
  );
}

/** The server's answer to a question, asked anew after each pause in typing. The old answer stays until then. */
function usePlan(question: Parameters<typeof askPlan>[0] | undefined): { answer: PlanAnswer | undefined; isAsking: boolean } {
  const [answer, setAnswer] = useState<PlanAnswer | undefined>(undefined);
  const [isAsking, setAsking] = useState(false);
  useEffect(() => {
    if (!question) return undefined;
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      setAsking(true);
      try {
        setAnswer(await askPlan(question, stop.signal));
      } catch (error) {
        if (!stop.signal.aborted) setAnswer({ fault: { error: String((error as Error).message) } });
      }
      if (!stop.signal.aborted) setAsking(false);
    }, DEBOUNCE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [question]);
  return { answer, isAsking };
}

/** Gives the allocation to the loaders of the file in every front end that is open. */
function SendToWorkflow({ file, alloc, compute }: { file: string; alloc: string; compute: string }) {
  const [says, setSays] = useState('');
  const tell = async (): Promise<void> => {
    try {
      const { clients } = await askTo<{ clients: number }>('loaders', { file, alloc, ...(compute && { compute }) });
      setSays(clients === 0 ? 'No front end is open.' : `Sent: loaders of ${file} in the open workflow have it now.`);
    } catch (error) {
      setSays(String((error as Error).message));
    }
  };
  useEffect(() => setSays(''), [file, alloc, compute]);
  return (
    <p class="send">
      <button type="button" onClick={() => void tell()} title="Writes the allocation into the loaders of this file in the workflow that is open in the front end">
        Send to the open workflow
      </button>{' '}
      <output aria-live="polite" class="detail">
        {says}
      </output>
    </p>
  );
}

function choiceOf(value: string): Choice {
  const at = value.indexOf('/');
  return { folder: value.slice(0, at), name: value.slice(at + 1) };
}

function whole(text: string): number | undefined {
  return /^\s*\d{1,9}\s*$/.test(text) ? Number(text) : undefined;
}

function NoFiles({ folders }: { folders: Folder[] }) {
  return (
    <Nothing>
      There is no model file yet. Put files here:
      {folders.slice(0, 1).map(({ folder, places }) => (
        <span key={folder}>
          {' '}
          {folder} in <code>{places.find((place) => place.endsWith(folder)) ?? places[0]}</code>
        </span>
      ))}
    </Nothing>
  );
}

/** The text, and under it the place where it is wrong. */
function AllocationField({ text, setText, fault }: { text: string; setText: (text: string) => void; fault: PlanFault | undefined }) {
  const field = useRef<HTMLInputElement>(null);
  const [isCopied, setCopied] = useState(false);
  // An answer to an older text says nothing about this one.
  const place = fault?.place?.text === text ? fault.place : undefined;
  const showPlace = (): void => {
    if (!place || !field.current) return;
    field.current.focus();
    field.current.setSelectionRange(fieldOffset(text, place.start), fieldOffset(text, place.end));
  };
  const copy = async (): Promise<void> => {
    if (field.current) await toClipboard(text, field.current);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <div class="allocation">
      <label for="allocation">Allocation</label>
      <div class="row">
        <input
          id="allocation"
          ref={field}
          value={text}
          placeholder="automatic; such as cuda:0,2.5gb;cuda:1,3gb;cpu,*"
          spellcheck={false}
          autocomplete="off"
          autocapitalize="off"
          aria-invalid={fault !== undefined}
          aria-describedby="allocation-fault"
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="button" onClick={() => void copy()} title="Copy it, for expert_mode_allocations of a loader node">
          {isCopied ? 'Copied' : 'Copy'}
        </button>
      </div>
      <div id="allocation-fault" role="status">
        {place && <Place text={text} place={place} onShow={showPlace} />}
        {fault && !place && fault.place == null && <p class="problem">{fault.error}</p>}
        {fault?.nearest && (
          <button type="button" onClick={() => setText(fault.nearest ?? '')}>
            Use {fault.nearest}
          </button>
        )}
      </div>
    </div>
  );
}

function Place({ text, place, onShow }: { text: string; place: NonNullable<PlanFault['place']>; onShow: () => void }) {
  const [before, marked, after] = markedText(text, place.start, place.end);
  return (
    <div class="place">
      <code>
        {before}
        <mark data-start={place.start} data-end={place.end}>
          {marked || '\u00a0'}
        </mark>
        {after}
      </code>
      <p class="problem">
        <button type="button" class="plain" onClick={onShow} title="Select it in the field">
          at character {place.start + 1}
        </button>
        : {place.problem}
        {place.hint && <span class="detail">; {place.hint}</span>}
      </p>
    </div>
  );
}

/** Pages that did not come over https from another machine have no clipboard; copying what is selected works there. */
async function toClipboard(text: string, field: HTMLInputElement): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  field.select();
  document.execCommand('copy');
}

/** A bar of the model, with a handle between any two devices. */
function SplitBar({ devices, plan, onSplit }: { devices: Device[]; plan: Plan | undefined; onSplit: (text: string) => void }) {
  const bar = useRef<HTMLDivElement>(null);
  // While a handle moves, its place counts, not that of the plan, which follows.
  const [held, setHeld] = useState<Split | undefined>(undefined);
  const ids = useMemo(() => ordered(devices, plan?.compute), [devices, plan?.compute]);
  const planned = useMemo(
    () => splitOf(ids.map((id) => plan?.devices.find((use) => use.device === id)?.weight_bytes ?? 0)),
    [ids, plan],
  );
  useEffect(() => setHeld(undefined), [plan]);
  const split = held?.length === ids.length ? held : planned;
  const move = (handle: number, to: number): void => {
    const next = moveHandle(split, handle, to);
    setHeld(next);
    onSplit(splitText(ids, next));
  };
  const drag = (handle: number) => (event: PointerEvent) => {
    const box = bar.current?.getBoundingClientRect();
    const target = event.currentTarget as HTMLElement;
    if (!box || !target.hasPointerCapture(event.pointerId)) return;
    move(handle, (100 * (event.clientX - box.left)) / box.width);
  };
  const press = (handle: number) => (event: KeyboardEvent) => {
    const at = handleAt(split, handle);
    const moves: Record<string, number> = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      PageDown: at - 10,
      PageUp: at + 10,
      Home: 0,
      End: 100,
    };
    const to = moves[event.key];
    if (to === undefined) return;
    event.preventDefault();
    move(handle, to);
  };
  if (ids.length < 2) return null;
  return (
    <div class="split" role="group" aria-label="Split of the model between devices">
      <div class="bar" ref={bar}>
        {ids.map((id, index) => (
          <i key={id} class={`device-${index % 6}`} style={{ flexGrow: split[index] ?? 0 }} data-share={split[index]}>
            {(split[index] ?? 0) >= 8 && (
              <span>
                {id} {split[index]} %
              </span>
            )}
          </i>
        ))}
        {ids.slice(0, -1).map((id, handle) => (
          <button
            key={id}
            type="button"
            class="handle"
            role="slider"
            style={{ left: `${handleAt(split, handle)}%` }}
            aria-label={`Between ${id} and ${ids[handle + 1]}`}
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={handleAt(split, handle)}
            aria-valuetext={`${ids.map((one, index) => `${one} ${split[index]} percent`).join(', ')}`}
            onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
            onPointerMove={drag(handle)}
            onKeyDown={press(handle)}
          />
        ))}
      </div>
    </div>
  );
}

/** The device that computes first, the host last. */
function ordered(devices: Device[], compute: string | undefined): string[] {
  const rank = (id: string): number => (id === compute ? 0 : id === 'cpu' ? 2 : 1);
  return devices.map((device) => device.id).toSorted((a, b) => rank(a) - rank(b));
}

function Outcome({ plan, devices, isAsking }: { plan: Plan; devices: Device[]; isAsking: boolean }) {
  const { prediction } = plan;
  const model = plan.blocks.reduce((total, block) => total + block.bytes, 0);
  const ids = ordered(devices, plan.compute);
  return (
    <div class={isAsking ? 'outcome stale' : 'outcome'} data-plan={plan.compute}>
      <p class="headline">
        <strong data-seconds={prediction.seconds_per_step}>
          {prediction.known === false ? 'not measured yet' : <Seconds value={prediction.seconds_per_step} />}
        </strong>{' '}
        per step predicted, computing on {plan.compute}
        <span class="detail">
          {' '}
          (compute <Seconds value={prediction.compute_s} />, copies <Seconds value={prediction.copy_s} />, stalls{' '}
          <Seconds value={prediction.stall_s} />)
        </span>
      </p>
      <div class="strip" role="img" aria-label={`${plan.blocks.length} blocks in order of use, by the device they live on`}>
        {plan.blocks.map((block) => (
          <i
            key={block.name}
            class={`device-${ids.indexOf(block.home) % 6} ${block.mode}`}
            style={{ flexGrow: block.bytes }}
            title={`${block.name}: ${exactBytes(block.bytes)} on ${homeOf(block)}, runs on ${block.runs_on}, ${block.mode}`}
          />
        ))}
      </div>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th scope="col">device</th>
              <th scope="col">weights</th>
              <th scope="col">passing through</th>
              <th scope="col">to work in</th>
              <th scope="col">has</th>
            </tr>
          </thead>
          <tbody>
            {plan.devices.map((use) => (
              <tr key={use.device} data-use={use.device} data-weights={use.weight_bytes}>
                <th scope="row">
                  <i class={`dot device-${ids.indexOf(use.device) % 6}`} aria-hidden="true" /> {use.device}
                </th>
                <td>
                  <Bytes count={use.weight_bytes} /> <small>{percent(use.weight_bytes, model)}</small>
                </td>
                <td>{use.ring_bytes > 0 ? <Bytes count={use.ring_bytes} /> : '–'}</td>
                <td>{use.working_bytes > 0 ? <Bytes count={use.working_bytes} /> : '–'}</td>
                <td>
                  <Bytes count={use.available_bytes} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {plan.notes.map((note) => (
        <p key={note} class="detail">
          {note}
        </p>
      ))}
    </div>
  );
}
