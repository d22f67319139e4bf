"""Speculative sampling: a small model drafts by chance, the large one keeps or replaces, and the distribution stays.

Leviathan et al. (arXiv 2211.17192), with their acceptance rule and not only at temperature 0: the drafter draws each
token from a distribution q and says so, the engine keeps it with probability min(1, p / q) and else draws from what is
left of p. The small model is theirs of section 4.3: a bigram model, here of the text so far, which learns with every
token. Where a word has not been seen yet nothing is drafted.
"""

EXTENSION = {
    "name": "speculative_sampling",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "draft": {"type": "integer", "minimum": 1, "maximum": 16, "default": 4},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 256},
            "temperature": {"type": "number", "minimum": 0, "maximum": 2, "default": 1.0},
            "seed": {"type": "integer", "minimum": 0, "default": 0},
        },
        "additionalProperties": False,
    },
}


class Bigrams:
    """What followed each token so far, how often, and a stream of random numbers to draw from that."""

    def __init__(self, draft, seed):
        self.draft = draft
        self.state = seed * 2 + 1
        self.after = {}
        self.num_seen = 1

    def uniform(self):
        # A linear congruential generator (Knuth's MMIX): a run with the same seed drafts the same tokens.
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) / 2**53

    def learn(self, tokens):
        for at in range(self.num_seen, len(tokens)):
            counts = self.after.setdefault(tokens[at - 1], {})
            counts[tokens[at]] = counts.get(tokens[at], 0) + 1
        self.num_seen = len(tokens)

    def draw(self, counts):
        left = self.uniform() * sum(counts.values())
        for token, count in counts.items():
            left -= count
            if left < 0:
                return token
        return token

    def propose(self, tokens, k):
        """Tokens drawn one after the other, and what each was drawn from."""
        self.learn(tokens)
        drafted, q, last = [], [], tokens[-1]
        while len(drafted) < min(k, self.draft) and last in self.after:
            counts = self.after[last]
            last = self.draw(counts)
            drafted.append(last)
            q.append(counts)
        return drafted, q


async def main(request, lm):
    args = request.args
    ctx = await lm.context(request.messages or request.prompt)
    small = Bigrams(args["draft"], args["seed"])
    answer = await ctx.generate(
        max_tokens=args["max_tokens"],
        temperature=args["temperature"],
        seed=args["seed"],
        drafter=small.propose,
        emit=True,
    )
    usage = answer.usage
    return {"tokens": usage.completion_tokens, "drafted": usage.drafted_tokens, "accepted": usage.accepted_tokens}
