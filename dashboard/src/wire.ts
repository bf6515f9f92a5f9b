// What the server's own routes answer. /gantry/openapi.json describes them.

export interface Device {
  id: string;
  name: string;
  detail: string;
  simulated: boolean;
  total_bytes: number;
  free_bytes: number;
  cached_bytes: number;
  budget_bytes: number;
  used_bytes: number;
  reserved_bytes: number;
  peak_bytes: number;
  /** How much of the last moment it computed, and how warm it is, where it tells. */
  busy_percent?: number | null;
  celsius?: number | null;
}

export type Retention = 'keep' | 'default' | 'eject';

export interface Block {
  name: string;
  bytes: number;
  home: string;
  runs_on: string;
  mode: 'resident' | 'streamed';
  /** Its bytes where it is losslessly coded: in host memory and on the link, or on the device where it stays. */
  coded_bytes?: number;
  /** Whether it is read from the disk whenever it travels, because host memory has no room for it. */
  from_disk?: boolean;
}

export interface BlockTime {
  compute_s: number;
  /** Decoding its weights, where they are losslessly coded. */
  decode_s: number;
  hop_s: number;
  copy_s: number;
  stall_s: number;
}

export interface DeviceUse {
  device: string;
  weight_bytes: number;
  ring_bytes: number;
  working_bytes: number;
  available_bytes: number;
}

export interface Plan {
  compute: string;
  order: string;
  blocks: Block[];
  ring: { slots: number; slot_bytes: number; room_bytes?: number } | null;
  /** Buffers of the host for what is read from the disk. */
  reading?: { buffers: number; buffer_bytes: number };
  devices: DeviceUse[];
  prediction: {
    /** Whether the machine's speeds were measured; if not, the times say nothing. */
    known?: boolean;
    seconds_per_step: number;
    compute_s: number;
    decode_s: number;
    hop_s: number;
    /** Outside of the model's blocks. */
    outside_s: number;
    stall_s: number;
    copy_s: number;
    blocks: BlockTime[];
  };
  notes: string[];
}

/** One step of a model, as its devices timed it. */
export interface StepProfile {
  seconds: number;
  blocks: {
    /** The number of the block in the plan. */
    block: number;
    device: string;
    compute_s: number;
    decode_s: number;
    stall_s: number;
    copy_s: number;
    copied_bytes: number;
  }[];
}

export interface Model {
  id: number;
  name: string;
  family: string;
  retention: Retention;
  /** Bytes of its copies by device; empty while it is only registered. */
  bytes: Record<string, number>;
  plan: Plan;
  staged: boolean;
  last_used: number;
  streamed: { blocks: number; bytes: number; stalls: number; stalled_seconds: number };
  /** Its latest step; none before it has computed. */
  profile?: StepProfile | null;
  /** Of blocks that the plan wants losslessly coded; none if there are none. */
  coding?: Coding | null;
}

export interface Coding {
  /** `coding` while steps run plain and blocks are being coded; `plain` if they could not be. */
  state: 'plain' | 'coding' | 'coded';
  done: number;
  blocks: number;
  seconds: number;
  /** Whether they were coded at an earlier start and only read. */
  is_read: boolean;
  reason?: string;
}

export interface ModelRun {
  id: number;
  name: string;
  family: string;
  compute: string;
  steps: number;
  /** Those that ran with losslessly coded blocks; the times are of these as soon as there are some. */
  coded_steps: number;
  predicted_seconds_per_step: number;
  measured_seconds_per_step: number;
  /** What part of a step the device decodes. */
  decoding_share: number;
  streamed_bytes: number;
  /** What was decoded, counted decoded. */
  decoded_bytes: number;
  stalls: number;
  stalled_seconds: number;
}

export interface RunningJob {
  prompt_id: string;
  /** Who runs it, by the device that it computes on. */
  worker: string | null;
  seconds: number;
  streamed_bytes: number;
  stalls: number;
  stalled_seconds: number;
  models: ModelRun[];
  nodes: {
    node: string;
    class: string;
    seconds: number;
    value: number;
    max: number;
    seconds_per_step: number | null;
  }[];
  nodes_done: number;
}

export interface EndedJob {
  prompt_id: string;
  seconds: number;
  streamed_bytes: number;
  stalls: number;
  stalled_seconds: number;
  models: ModelRun[];
  nodes: { node: string; class: string; seconds: number; steps: number; seconds_per_step: number | null }[];
}

/** Who runs jobs, and what it runs. */
export interface Worker {
  device: string;
  running: RunningJob | null;
}

export interface Stats {
  /** The job that runs, of several the one that began first. */
  running: RunningJob | null;
  workers: Worker[];
  waiting: number;
  jobs: EndedJob[];
  clients: number;
  kept_models_missing: number;
}

/** The part of a job's record that the page reads. */
export interface JobDetail {
  workflow: { prompt: Prompt };
}

/** A workflow as it was sent, by the ids of its nodes. */
export type Prompt = Record<string, { class_type: string; inputs?: Record<string, unknown> }>;

/** A job that waits. */
export interface WaitingJob {
  prompt_id: string;
  nodes: number;
  since_ms: number;
}

/** A job that failed. */
export interface FailedJob {
  prompt_id: string;
  at_ms: number;
  node: string;
  class: string;
  message: string;
}

export interface Snapshot {
  number: number;
  time: string;
  label: string;
  used: Record<string, number>;
  cached: Record<string, number>;
}

export interface Folder {
  folder: string;
  places: string[];
  files: { name: string; bytes: number | null }[];
}

export interface PlanQuestion {
  file: string;
  folder: string;
  alloc: string;
  compute?: string;
  size?: string;
  batch?: number;
  cfg?: boolean;
}

/** Why there is no plan. The place counts characters of the allocation. */
export interface PlanFault {
  error: string;
  place?: { text: string; start: number; end: number; problem: string; hint: string | null } | null;
  nearest?: string | null;
  available?: { device: string; bytes: number }[];
}

/** Addresses are relative to the page's, so that they hold behind a proxy that adds a path. */
export async function ask<T>(address: string, signal?: AbortSignal): Promise<T> {
  const response = await fetch(address, { cache: 'no-store', ...(signal && { signal }) });
  if (!response.ok) throw new Error(`${address}: ${response.status} ${await response.text()}`);
  return (await response.json()) as T;
}

export async function send(method: string, address: string, body?: unknown): Promise<void> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { 'content-type': 'application/json' };
  }
  const response = await fetch(address, init);
  if (!response.ok) throw new Error(`${method} ${address}: ${response.status} ${await response.text()}`);
}

/** Sends a value and reads the answer. */
export async function askTo<T>(address: string, body: unknown): Promise<T> {
  const response = await fetch(address, {
    method: 'POST',
    body: JSON.stringify(body),
    headers: { 'content-type': 'application/json' },
  });
  if (!response.ok) throw new Error(`${address}: ${response.status} ${await response.text()}`);
  return (await response.json()) as T;
}

export type PlanAnswer = { plan: Plan } | { fault: PlanFault };

/** A text that is half typed is no failure of a request, so faults are asked for as answers like any other. */
export async function askPlan(question: PlanQuestion, signal: AbortSignal): Promise<PlanAnswer> {
  const response = await fetch('plan?faults=200', {
    method: 'POST',
    body: JSON.stringify(question),
    headers: { 'content-type': 'application/json' },
    signal,
  });
  const text = await response.text();
  try {
    const answer = JSON.parse(text) as Plan | PlanFault;
    return 'error' in answer ? { fault: answer } : { plan: answer };
  } catch {
    return { fault: { error: `${response.status} ${text}` } };
  }
}
