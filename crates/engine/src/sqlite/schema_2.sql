-- A job that runs is claimed by a worker, until its lease runs out.
ALTER TABLE job ADD COLUMN worker TEXT;                            -- NULL: it waits
ALTER TABLE job ADD COLUMN lease_until INTEGER;                    -- milliseconds since 1970
ALTER TABLE job ADD COLUMN attempts INTEGER NOT NULL DEFAULT 0;    -- how often it was claimed
UPDATE job SET worker = '', attempts = 1 WHERE is_running;
ALTER TABLE job DROP COLUMN is_running;
