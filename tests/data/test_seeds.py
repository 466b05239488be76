"""Random numbers that can be drawn again."""

import torch

from dross.data.seeds import make_generator, mix_seeds, use_seed

CPU = torch.device("cpu")


def test_a_mixed_seed_depends_on_every_part_and_its_place():
    seeds = {mix_seeds(*parts) for parts in [(), (0,), (1,), (0, 1), (1, 0), (0, 0, 1)]}
    assert len(seeds) == 6 and all(0 <= seed < 2**63 for seed in seeds)


def test_a_generator_repeats_its_numbers():
    one, same, other = (make_generator(CPU, 5, k) for k in (1, 1, 2))
    drawn = torch.rand(4, generator=one)
    assert torch.equal(drawn, torch.rand(4, generator=same))
    assert not torch.equal(drawn, torch.rand(4, generator=other))


def test_the_global_generators_go_on_where_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with use_seed(CPU, 7):
        inside = torch.rand(2)
    with use_seed(CPU, 7):
        assert torch.equal(torch.rand(2), inside)
    assert torch.equal(torch.rand(2), expected)
