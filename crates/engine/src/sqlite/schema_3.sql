-- Which worker ran a job, where there were several.
ALTER TABLE history ADD COLUMN worker TEXT;
