// The arithmetic behind what the page shows.

import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fieldOffset, handleAt, markedText, moveHandle, splitOf, splitText } from '../src/allocation.ts';
import { codingState, headroom, holdings, homeOf, merged, parts, sum, type Piece } from '../src/contents.ts';
import { drawnBy } from '../src/drawn.ts';
import { against, bytes, exactBytes, percent, seconds } from '../src/format.ts';
import { outcome } from '../src/free.ts';
import { areaUnder, History, stepPath, stretch, WINDOW_MS } from '../src/history.ts';
import { blockTimes, total } from '../src/profile.ts';
import type { Block, Device, Model, Snapshot } from '../src/wire.ts';

const GIB = 1024 ** 3;

function block(name: string, count: number, home: string, mode: Block['mode'] = 'resident'): Block {
  return { name, bytes: count, home, runs_on: 'sim:0', mode };
}

function model(id: number, more: Partial<Model> = {}): Model {
  const blocks = [block('in', 100, 'sim:0'), block('a', 300, 'sim:1', 'streamed'), block('b', 200, 'cpu', 'streamed')];
  const time = { compute_s: 1, decode_s: 0.125, hop_s: 0, copy_s: 0.5, stall_s: 0.25 };
  return {
    id,
    name: `m${id}`,
    family: 'FLUX.1',
    retention: 'default',
    bytes: { 'sim:0': 700, 'sim:1': 300, cpu: 200 },
    staged: true,
    last_used: 0,
    streamed: { blocks: 0, bytes: 0, stalls: 0, stalled_seconds: 0 },
    plan: {
      compute: 'sim:0',
      order: 'interleaved',
      blocks,
      ring: { slots: 2, slot_bytes: 300 },
      devices: [],
      prediction: { seconds_per_step: 3, compute_s: 3, decode_s: 0.375, hop_s: 0, outside_s: 0, stall_s: 0, copy_s: 1, blocks: [time, time, time] },
      notes: [],
    },
    ...more,
  };
}

function device(id: string, more: Partial<Device> = {}): Device {
  return {
    id,
    name: id,
    detail: '',
    simulated: false,
    total_bytes: 2000,
    free_bytes: 1000,
    cached_bytes: 50,
    budget_bytes: 1800,
    used_bytes: 750,
    reserved_bytes: 40,
    peak_bytes: 800,
    ...more,
  };
}

test('bytes have three digits and a binary unit', () => {
  assert.equal(bytes(0), '0 B');
  assert.equal(bytes(1023), '1023 B');
  assert.equal(bytes(1024), '1.00 KiB');
  assert.equal(bytes(4_620_544), '4.41 MiB');
  assert.equal(bytes(2 * GIB), '2.00 GiB');
  assert.equal(bytes(25_276_518_400), '23.5 GiB');
  assert.equal(bytes(1023 * 1024 ** 2), '1.00 GiB');
  assert.equal(bytes(-2048), '−2.00 KiB');
  assert.equal(exactBytes(4_620_544), '4,620,544 bytes');
});

test('seconds have the unit that suits them', () => {
  assert.equal(seconds(0), '0 s');
  assert.equal(seconds(0.0000335), '33.5 µs');
  assert.equal(seconds(0.01856785725), '18.6 ms');
  assert.equal(seconds(0.9999), '1.00 s');
  assert.equal(seconds(119.7), '2 min 00 s');
  assert.equal(seconds(3725), '1 h 02 min');
  assert.equal(seconds(Number.NaN), '–');
});

test('shares and comparisons are worded', () => {
  assert.equal(percent(1, 3), '33 %');
  assert.equal(percent(1, 3000), '< 0.1 %');
  assert.equal(percent(1, 0), '0 %');
  assert.equal(against(1.001, 1), 'as predicted');
  assert.equal(against(1.1, 1), '10 % slower');
  assert.equal(against(1, 4), '4.0 × faster');
  assert.equal(against(0, 4), '');
});

test('a split becomes a text, and bytes become a split', () => {
  assert.equal(splitText(['sim:0', 'sim:1', 'cpu'], [50, 0, 50]), 'sim:0,50%;cpu,50%');
  assert.deepEqual(splitOf([1, 1, 1]), [34, 33, 33]);
  assert.deepEqual(splitOf([0, 0]), [100, 0]);
  assert.deepEqual(splitOf([3_136_000, 989_696, 494_848]), [68, 21, 11]);
});

test('handles push each other and shares stay whole', () => {
  const split = [50, 30, 20];
  assert.equal(handleAt(split, 0), 50);
  assert.equal(handleAt(split, 1), 80);
  assert.deepEqual(moveHandle(split, 0, 60.4), [60, 20, 20]);
  assert.deepEqual(moveHandle(split, 0, 90), [90, 0, 10]);
  assert.deepEqual(moveHandle(split, 1, 20), [20, 0, 80]);
  assert.deepEqual(moveHandle(split, 1, 300), [50, 50, 0]);
  for (let to = -10; to <= 110; to += 7) {
    const moved = moveHandle([10, 20, 30, 40], 1, to);
    assert.equal(sum(moved), 100);
    assert.ok(moved.every((share) => share >= 0));
  }
});

test('a place is marked by characters, not by units', () => {
  assert.deepEqual(markedText('cpu,2xb', 5, 7), ['cpu,2', 'xb', '']);
  assert.deepEqual(markedText('😀,2xb', 3, 5), ['😀,2', 'xb', '']);
  assert.deepEqual(markedText('cpu,', 4, 4), ['cpu,', '', '']);
  assert.deepEqual(markedText('cpu', 9, 12), ['cpu', '', '']);
  assert.equal(fieldOffset('😀,2xb', 3), 4);
});

test('a device holds the blocks whose home it is, and the ring where the model computes', () => {
  const [held] = holdings('sim:0', [model(1)]);
  assert.deepEqual(held?.pieces.map((piece) => [piece.kind, piece.bytes]), [['resident', 100], ['ring', 300], ['ring', 300]]);
  assert.deepEqual(holdings('sim:1', [model(1)])[0]?.pieces.map((piece) => piece.kind), ['donor']);
  assert.deepEqual(holdings('cpu', [model(1)])[0]?.pieces.map((piece) => piece.kind), ['mapped']);
  const onGpu = model(2);
  onGpu.plan.compute = 'cuda:0';
  assert.deepEqual(holdings('cpu', [onGpu])[0]?.pieces.map((piece) => piece.kind), ['pinned']);
  assert.deepEqual(holdings('sim:0', [model(3, { staged: false })]), []);
  // What is read from the disk takes nothing of the host but the buffers.
  const onDisk = model(4);
  for (const block of onDisk.plan.blocks) block.from_disk = block.home === 'cpu';
  onDisk.plan.reading = { buffers: 3, buffer_bytes: 10 };
  assert.deepEqual(holdings('cpu', [onDisk])[0]?.pieces.map((piece) => [piece.kind, piece.bytes]), [['ring', 30]]);
  assert.deepEqual(onDisk.plan.blocks.filter((block) => homeOf(block) === 'disk').map((block) => block.home), ['cpu']);
});

test('the parts of a device come to its memory', () => {
  const [one, other] = [model(1), model(2, { bytes: { 'sim:0': 30 } })];
  const list = parts(device('sim:0'), holdings('sim:0', [one, other]));
  assert.equal(sum(list.map((part) => part.bytes)), 2000);
  const of = (kind: string) => sum(list.filter((part) => part.kind === kind).map((part) => part.bytes));
  assert.deepEqual([of('model'), of('other'), of('cached'), of('outside'), of('reserved')], [730, 20, 50, 200, 40]);
  assert.equal(headroom(device('sim:0')), 1010);
  // The mapped file is no memory of ours.
  const host = parts(device('cpu', { used_bytes: 0 }), holdings('cpu', [one]));
  assert.equal(host.filter((part) => part.kind === 'model').length, 0);
  // A count that is behind the ledger is cut, never more than all.
  const small = parts(device('sim:0', { total_bytes: 500, used_bytes: 400 }), holdings('sim:0', [one]));
  assert.equal(sum(small.map((part) => part.bytes)), 500);
});

test('many blocks are drawn as few runs that lose no byte', () => {
  const pieces: Piece[] = Array.from({ length: 57 }, (_, index) => ({
    kind: index % 19 === 18 ? 'donor' : 'resident',
    name: `b${index}`,
    bytes: 10 + index,
  }));
  assert.equal(merged(pieces, 100).length, 57);
  const runs = merged(pieces, 10);
  assert.ok(runs.length < 20);
  assert.equal(sum(runs.map((run) => run.bytes)), sum(pieces.map((piece) => piece.bytes)));
  assert.equal(sum(runs.map((run) => run.count)), 57);
});

test('memory is drawn as steps', () => {
  const box = { width: 100, height: 10 };
  assert.equal(stepPath([], [0, 100], 10, box), '');
  assert.equal(stepPath([{ at: -5, bytes: 5 }], [0, 100], 10, box), 'M0 5H100');
  assert.equal(stepPath([{ at: 0, bytes: 0 }, { at: 50, bytes: 10 }], [0, 100], 10, box), 'M0 10V10H50V0H100');
  assert.equal(areaUnder('M20 5H100', 10), 'M20 5H100V10H20Z');
  assert.equal(areaUnder('', 10), '');
  assert.deepEqual(stretch(1_000_000, undefined), [940_000, 1_000_000]);
  assert.deepEqual(stretch(1e9, 0), [1e9 - WINDOW_MS, 1e9]);
});

test('the history keeps the ends of level stretches and forgets what is old', () => {
  const history = new History();
  for (let second = 0; second < 100; second += 1) history.sample(second * 1000, [device('cpu', { used_bytes: second < 50 ? 1 : 2 })]);
  assert.deepEqual(history.samples.map((sample) => sample.at), [0, 49_000, 50_000, 99_000]);
  history.sample(2 * WINDOW_MS, [device('cpu', { used_bytes: 3 })]);
  assert.ok(history.samples.length <= 3);
  history.add(Array.from({ length: 300 }, (_, number) => shot(number, 'x', 1)));
  assert.equal(history.snapshots.length, 200);
  assert.equal(history.latest, 299);
});

test('models that come and leave and jobs are phases', () => {
  const history = new History();
  const here = [device('cpu', { used_bytes: 7 })];
  history.notice(1, here, [model(1)], []);
  assert.deepEqual(history.phases(), [], 'what was there before is no news');
  history.notice(2, here, [model(1), model(2)], ['abcdefghijkl']);
  history.notice(3, here, [model(2)], ['abcdefghijkl']);
  history.notice(4, here, [model(2, { staged: false })], []);
  history.add([shot(1, 'free: before', 1)]);
  const labels = ['job abcdefgh began', 'm2 came', 'm1 left', 'job abcdefgh ended', 'm2 left', 'free: before'];
  assert.deepEqual(history.phases().map((phase) => phase.label), labels);
  assert.deepEqual(history.phases()[0]?.used, { cpu: 7 });
});

function shot(number: number, label: string, used: number): Snapshot {
  return { number, time: '2026-01-01T00:00:00.000Z', label, used: { cpu: used }, cached: { cpu: 0 } };
}

test('what a free request left is told with the reason', () => {
  const [kept, gone, marked] = [model(1, { retention: 'keep' }), model(2, { retention: 'eject' }), model(3)];
  const taken = [shot(1, 'free: before', 90), shot(2, 'free: caches emptied', 40)];
  const told = outcome([kept, gone, marked], [kept, marked], taken);
  assert.deepEqual(told.left, ['m2']);
  assert.deepEqual(told.stayed.map((one) => one.name), ['m1', 'm3']);
  assert.match(told.stayed[0]?.why ?? '', /kept/);
  assert.match(told.stayed[1]?.why ?? '', /marked to go first/);
  assert.deepEqual(told.back, [{ device: 'cpu', bytes: 50 }]);
});

test('times of blocks are measured where there is a profile, else planned', () => {
  assert.equal(blockTimes(model(1)).isMeasured, false);
  assert.deepEqual(total(blockTimes(model(1)).times), { compute_s: 3, decode_s: 0.375, copy_s: 1.5, stall_s: 0.75 });
  const step = { block: 1, device: 'sim:0', compute_s: 2, decode_s: 0.5, stall_s: 1, copy_s: 4, copied_bytes: 300 };
  const measured = blockTimes(model(1, { profile: { seconds: 3, blocks: [step] } }));
  assert.equal(measured.isMeasured, true);
  assert.deepEqual(measured.times[0], undefined);
  assert.deepEqual(total(measured.times), { compute_s: 2, decode_s: 0.5, copy_s: 4, stall_s: 1 });
});

test('the size of the latest job is read off its prompt', () => {
  const latent = { class_type: 'EmptySD3LatentImage', inputs: { width: 128, height: 64, batch_size: 2 } };
  const sampler = { class_type: 'KSampler', inputs: { cfg: 1, latent_image: ['1', 0] } };
  assert.deepEqual(drawnBy({ 1: latent, 2: sampler }), { size: '128x64', batch: 2, hasGuidance: false });
  const guided = { class_type: 'KSampler', inputs: { cfg: 7.5 } };
  assert.equal(drawnBy({ 1: latent, 2: guided })?.hasGuidance, true);
  assert.equal(drawnBy({ 2: sampler }), undefined);
  // A size that another node computes is not known here.
  assert.equal(drawnBy({ 1: { class_type: 'EmptyLatentImage', inputs: { width: ['5', 0], height: 64 } } }), undefined);
});

test('how far coding is stands in words', () => {
  const coding = { done: 3, blocks: 57, seconds: 1, is_read: false };
  assert.equal(codingState({ ...coding, state: 'coding' }), 'coding 3 of 57, steps run plain until then');
  assert.equal(codingState({ ...coding, state: 'coded', is_read: true }), 'coded, read from the cache');
  assert.equal(codingState({ ...coding, state: 'plain', reason: 'no memory' }), 'plain: no memory');
});
