"""Mirostat: steer the surprise of a text to a value, by a truncation that reacts to what was drawn.

Follows Basu et al., "Mirostat" (arXiv 2007.14966), Algorithm 1: the exponent of Zipf's law is estimated from the
hundred likeliest tokens, k from that and from the running bound mu, and mu learns from the surprise of the token
drawn. `version=2` leaves the estimate out and cuts at the surprise mu itself, as llama.cpp's second version does.
"""

EXTENSION = {
    "name": "mirostat",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "tau": {"type": "number", "exclusiveMinimum": 0, "maximum": 50, "default": 5.0},
            "rate": {"type": "number", "minimum": 0, "maximum": 10, "default": 0.1},
            "version": {"type": "integer", "enum": [1, 2], "default": 1},
            "temperature": {"type": "number", "exclusiveMinimum": 0, "maximum": 5, "default": 1.0},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "seed": {"type": "integer"},
        },
        "additionalProperties": False,
    },
}

SAMPLER = """
state.mu = 2.0 * tau

def sample(logits, key, tau, rate, version, temperature):
    x = logits / temperature
    surprise = -log_softmax(x) / log(2.0)
    best, _ = topk(x, 100)
    place = rank(best)
    after = gather(best, place + 1)
    counted = (place < 99) & (after > -1e29)
    t = log((place + 2) / (place + 1))
    s = sum(where(counted, t * (best - after), 0.0)) / sum(where(counted, t * t, 0.0))
    e = s - 1.0
    k = (e * 2.0 ** state.mu / (1.0 - vocab_size ** -e)) ** (1.0 / s)
    kept = where(version == 1, rank(x) < k, surprise < state.mu) | (rank(x) == 0)
    token = gumbel_argmax(where(kept, x, -1e30), key)
    state.mu = state.mu - rate * (gather(surprise, token) - tau)
    return token
"""


async def main(request, lm):
    args = request.args
    sampler = await lm.program(
        SAMPLER, tau=args["tau"], rate=args["rate"], version=args["version"], temperature=args["temperature"]
    )
    ctx = await lm.context(request.messages or request.prompt)
    answer = await ctx.generate(max_tokens=args["max_tokens"], seed=args.get("seed"), sampler=sampler, emit=True)
    return answer.text
