from tests.engine.support import make_engine, request


def test_snapshot_shows_every_unfinished_sequence_and_every_block():
    engine = make_engine(max_num_seqs=2, prefill_chunk=16, max_num_batched_tokens=24)
    engine.add(request("decodes", 10, max_tokens=50, ignore_eos=True))
    engine.step()
    engine.add(request("prefills", (5,) * 60, max_tokens=9))
    engine.add(request("waits", 3))
    engine.step()
    engine.step()
    snapshot = engine.snapshot()
    decodes, prefills = snapshot.running
    (waits,) = snapshot.waiting
    assert (decodes.request_id, decodes.state, decodes.computed_tokens, decodes.generated_tokens) == (
        *("decodes", "decode"),
        *(11, 2),
    )
    assert (prefills.state, prefills.computed_tokens, prefills.prompt_tokens, prefills.max_tokens) == (
        *("prefill", 16),
        *(60, 9),
    )
    assert (waits.request_id, waits.state, waits.blocks) == ("waits", "waiting", ())
    assert [i for i, refs in enumerate(snapshot.blocks) if refs == 1] == sorted((*decodes.blocks, *prefills.blocks))
    assert snapshot.stats.kv_blocks_used == len(decodes.blocks) + len(prefills.blocks)


def test_figures_of_blocks_add_up():
    engine = make_engine()
    engine.add(request(prompt=40, max_tokens=20, ignore_eos=True))
    while engine.has_work():
        engine.step()
        stats = engine.stats()
        assert stats.kv_blocks_used + stats.kv_blocks_free == stats.kv_blocks_total == 64
        assert engine.snapshot().blocks.count(255) == stats.kv_blocks_cached
    assert engine.stats().kv_blocks_cached == 59 // 16
