// What is on a device, piece by piece: the arithmetic behind the bars.

import type { Block, Coding, Device, Model } from './wire.ts';

/**
 * - `resident`: weights that compute where they are
 * - `donor`: weights that are streamed to another device from here
 * - `pinned`: weights in host memory from which a GPU copies at full speed
 * - `mapped`: weights that lie in the mapped file, which is no memory of ours
 * - `ring`: the slots through which streamed blocks pass, and the room in which coded ones are decoded
 */
export type PieceKind = 'resident' | 'donor' | 'pinned' | 'mapped' | 'ring';

export interface Piece {
  kind: PieceKind;
  name: string;
  bytes: number;
}

export interface Holding {
  model: Model;
  /** As the server counts them, with the padding between weights. */
  bytes: number;
  pieces: Piece[];
}

/** The loaded models that have something on a device, and what. */
export function holdings(device: string, models: Model[]): Holding[] {
  const found: Holding[] = [];
  for (const model of models) {
    const bytes = model.staged ? (model.bytes[device] ?? 0) : 0;
    if (bytes > 0) found.push({ model, bytes, pieces: piecesOn(device, model) });
  }
  return found;
}

function piecesOn(device: string, model: Model): Piece[] {
  const { plan } = model;
  const pieces: Piece[] = plan.blocks
    .filter((block) => block.home === device && !block.from_disk)
    .map((block) => ({ kind: kindOf(block, plan.compute), name: block.name, bytes: heldBytes(block) }));
  if (plan.ring && plan.compute === device) {
    const { slots, slot_bytes, room_bytes } = plan.ring;
    for (let slot = 1; slot <= slots; slot += 1) {
      pieces.push({ kind: 'ring', name: `ring slot ${slot} of ${slots}`, bytes: slot_bytes });
    }
    if (room_bytes) pieces.push({ kind: 'ring', name: 'room to decode in', bytes: room_bytes });
  }
  if (plan.reading && device === 'cpu') {
    const { buffers, buffer_bytes } = plan.reading;
    pieces.push({ kind: 'ring', name: `${buffers} buffers for the disk`, bytes: buffers * buffer_bytes });
  }
  return pieces;
}

/** What a block takes where it lives. */
function heldBytes(block: Block): number {
  return block.coded_bytes ?? block.bytes;
}

/** How far the coding of a model's blocks is, in words. */
export function codingState(coding: Coding): string {
  switch (coding.state) {
    case 'coding':
      return `coding ${coding.done} of ${coding.blocks}, steps run plain until then`;
    case 'coded':
      return coding.is_read ? 'coded, read from the cache' : 'coded';
    case 'plain':
      return `plain: ${coding.reason ?? 'they could not be coded'}`;
  }
}

/** Bytes of the blocks that are losslessly coded, as they were and as they are. */
export function coded(blocks: Block[]): { blocks: number; plain: number; coded: number } {
  const found = blocks.filter((block) => block.coded_bytes !== undefined);
  return {
    blocks: found.length,
    plain: sum(found.map((block) => block.bytes)),
    coded: sum(found.map(heldBytes)),
  };
}

/** Where a block's weights live, in words. */
export function homeOf(block: Block): string {
  return block.from_disk ? 'disk' : block.home;
}

export function kindOf(block: Block, compute: string): PieceKind {
  if (block.home !== 'cpu') return block.mode === 'resident' ? 'resident' : 'donor';
  // A coded block lies in memory of ours, whatever copies it.
  if (block.coded_bytes !== undefined) return 'pinned';
  return block.mode === 'streamed' && compute.startsWith('cuda') ? 'pinned' : 'mapped';
}

export interface Part {
  kind: 'model' | 'other' | 'reserved' | 'cached' | 'outside' | 'free';
  /** Of the model, where it is one. */
  id?: number;
  bytes: number;
}

/**
 * All memory of a device, in parts that come to exactly its total: models, what else is in use (activations), reserved,
 * cached, used by others, free. Where the counts of models and ledger disagree for a moment, the ledger counts.
 */
export function parts(device: Device, held: Holding[]): Part[] {
  let left = device.total_bytes;
  const take = (bytes: number): number => {
    const taken = Math.max(0, Math.min(bytes, left));
    left -= taken;
    return taken;
  };
  const found: Part[] = [];
  let inModels = 0;
  for (const { model, pieces, bytes } of held) {
    const mapped = sum(pieces.filter((piece) => piece.kind === 'mapped').map((piece) => piece.bytes));
    const allocated = Math.min(Math.max(0, bytes - mapped), device.used_bytes - inModels);
    inModels += allocated;
    if (allocated > 0) found.push({ kind: 'model', id: model.id, bytes: take(allocated) });
  }
  found.push({ kind: 'other', bytes: take(device.used_bytes - inModels) });
  found.push({ kind: 'cached', bytes: take(device.cached_bytes) });
  // What the system does not call free and is not ours is of others.
  const outside = device.total_bytes - device.free_bytes - device.used_bytes - device.cached_bytes;
  found.push({ kind: 'outside', bytes: take(outside) });
  found.push({ kind: 'reserved', bytes: take(device.reserved_bytes) });
  found.push({ kind: 'free', bytes: left });
  return found.filter((part) => part.bytes > 0);
}

/** What models may still use. */
export function headroom(device: Device): number {
  return Math.max(0, device.budget_bytes - device.used_bytes - device.reserved_bytes);
}

export interface Run {
  kind: PieceKind;
  first: string;
  last: string;
  count: number;
  bytes: number;
}

/** Neighbours of one kind as one, for a bar that is narrower than its blocks are many. */
export function merged(pieces: Piece[], atMost: number): Run[] {
  const single = pieces.map(({ kind, name, bytes }) => ({ kind, first: name, last: name, count: 1, bytes }));
  if (single.length <= atMost) return single;
  const runs: Run[] = [];
  const each = Math.ceil(single.length / atMost);
  for (const piece of single) {
    const last = runs.at(-1);
    if (last && last.kind === piece.kind && last.count < each) {
      last.last = piece.last;
      last.count += 1;
      last.bytes += piece.bytes;
    } else {
      runs.push({ ...piece });
    }
  }
  return runs;
}

export function sum(values: number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
