"""One memory-mapped form for logs of every origin: contiguous columns, one raw file each, and a `meta.json`.

    <name>.store/
      meta.json              format, interface (what -1 and +1 of the actions mean, null where nobody knows; "action":
                             "normalised" or "stated", see `bounds`), shapes, dtypes, SHA-256 of every column, sources,
                             conversion report, moments
      episodes.jsonl         what is known of single episodes (task, seed, ...), one JSON object per line
      obs.<key>.bin          [M, ...]   M = sum of (T_e + 1): every episode keeps its final observation
      action.bin             [N, A] float32, N = sum of T_e; proposed.bin only where it ever differs
      reward.bin             [N] float32
      terminal.bin           [N] bool, true only where the task ended; truncated.bin [N] bool, any other end
      intervened.bin         [N] bool
      stamp.bin              [M] float64, seconds
      info.<key>.bin         [N, ...] further columns
      episode_*.bin          [E] start_obs, start_step, len (int64), final_obs_valid, complete (bool),
                             success (int8, -1 unknown)

All numbers are little-endian. Transition t of episode e leads from row start_obs[e] + t to the row behind it. Opening
maps the files and reads nothing but `meta.json`; episodes are written as they come, so neither side needs the data in
memory.
"""

from __future__ import annotations

from robot_rl.data.store_read import Store, open_store
from robot_rl.data.store_write import StoreWriter, write_store

__all__ = ["Store", "StoreWriter", "open_store", "write_store"]
