-- Jobs that wait or run. Small rows, because they change.
CREATE TABLE job (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_id TEXT NOT NULL,
    number REAL,                              -- NULL is NaN
    counter INTEGER NOT NULL,                 -- the queue's counter after it was accepted
    client_id TEXT,
    outputs TEXT NOT NULL,
    is_running INTEGER NOT NULL DEFAULT 0,
    was_requeued INTEGER NOT NULL DEFAULT 0,
    lost_runs INTEGER NOT NULL DEFAULT 0      -- how often the process ended while it ran
);

-- What is large and never changes, of a job in either of the other tables.
CREATE TABLE body (
    sequence INTEGER PRIMARY KEY,
    prompt TEXT NOT NULL,
    extra_data TEXT NOT NULL
);

-- Jobs that ended, in the order in which they did.
CREATE TABLE history (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    prompt_id TEXT NOT NULL UNIQUE,
    sequence INTEGER NOT NULL,
    number REAL,
    client_id TEXT,
    outputs TEXT NOT NULL,
    was_requeued INTEGER NOT NULL,
    status INTEGER NOT NULL,
    created INTEGER NOT NULL,
    duration INTEGER NOT NULL,
    workflow_id TEXT,
    shown TEXT NOT NULL,
    meta TEXT NOT NULL,
    messages TEXT NOT NULL
);

-- All that lists are chosen and sorted by, so that a list reads only the rows that it shows.
CREATE INDEX history_list ON history (created, sequence, status, duration, workflow_id, prompt_id);

CREATE TRIGGER history_forgets AFTER DELETE ON history BEGIN
    DELETE FROM body WHERE sequence = old.sequence;
END;
