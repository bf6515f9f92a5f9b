// What waits, with a way to take it out, and what went wrong lately.

import { clock } from './format.ts';
import { Nothing } from './pieces.tsx';
import { send, type FailedJob, type WaitingJob } from './wire.ts';

interface Props {
  queue: WaitingJob[];
  /** All that wait; the list has the first of them. */
  waiting: number;
  refresh: () => Promise<void>;
}

export function Queue({ queue, waiting, refresh }: Props) {
  const cancel = async (ids: string[]): Promise<void> => {
    await send('POST', '../api/jobs/cancel', { job_ids: ids }).catch(() => undefined);
    await refresh();
  };
  const clear = async (): Promise<void> => {
    await send('POST', '../queue', { clear: true }).catch(() => undefined);
    await refresh();
  };
  return (
    <section aria-labelledby="queue">
      <h2 id="queue">
        Queue <small>{waiting > 0 && `${waiting} waiting`}</small>
        {waiting > 1 && (
          <button type="button" class="stop" onClick={() => void clear()}>
            Cancel all
          </button>
        )}
      </h2>
      {queue.length === 0 ? (
        <Nothing>Nothing waits.</Nothing>
      ) : (
        <ol class="queue">
          {queue.map((job) => (
            <li key={job.prompt_id} data-waiting={job.prompt_id}>
              <code title={job.prompt_id}>{job.prompt_id.slice(0, 8)}</code>
              <span class="detail">
                {job.nodes} {job.nodes === 1 ? 'node' : 'nodes'}, since <span class="number">{clock(job.since_ms)}</span>
              </span>
              <button
                type="button"
                class="stop"
                aria-label={`Cancel job ${job.prompt_id.slice(0, 8)}`}
                onClick={() => void cancel([job.prompt_id])}
              >
                Cancel
              </button>
            </li>
          ))}
        </ol>
      )}
      {waiting > queue.length && queue.length > 0 && <p class="detail">and {waiting - queue.length} more</p>}
    </section>
  );
}

/** Jobs that failed since the server was started; nothing is shown where none did. */
export function Errors({ errors }: { errors: FailedJob[] }) {
  if (errors.length === 0) return null;
  return (
    <section aria-labelledby="errors">
      <h2 id="errors">Recent errors</h2>
      <ul class="errors">
        {errors.map((job) => (
          <li key={job.prompt_id} data-error={job.prompt_id}>
            <p>
              <span class="number">{clock(job.at_ms)}</span> <strong>{job.class || 'the job'}</strong>{' '}
              <span class="detail">
                {job.node && `node ${job.node}, `}job <code title={job.prompt_id}>{job.prompt_id.slice(0, 8)}</code>
              </span>
            </p>
            <p class="problem">{job.message}</p>
          </li>
        ))}
      </ul>
    </section>
  );
}
