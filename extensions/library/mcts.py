"""Monte Carlo tree search over sentences: grow the tree where answers were rated best, for a number of rounds.

After Hao et al., "Reasoning via Planning" (arXiv 2305.14992): UCT selection, expansion by sampled steps, simulation by
greedy completion, back-propagation of the reward. The reward is the model's own rating from 1 to 9, where the paper has
task-specific rewards.
"""

EXTENSION = {
    "name": "mcts",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "rounds": {"type": "integer", "minimum": 1, "maximum": 64, "default": 4},
            "width": {"type": "integer", "minimum": 1, "maximum": 8, "default": 2},
            "depth": {"type": "integer", "minimum": 1, "maximum": 8, "default": 3},
            "step_tokens": {"type": "integer", "minimum": 1, "default": 32},
            "answer_tokens": {"type": "integer", "minimum": 1, "default": 80},
            "exploration": {"type": "number", "minimum": 0, "default": 1.4},
        },
        "additionalProperties": False,
    },
}


class Node:
    def __init__(self, ctx, parent, text, is_end):
        self.ctx = ctx
        self.parent = parent
        self.text = text
        self.is_end = is_end
        self.children = []
        self.visits = 0
        self.total = 0.0


def chosen(node, exploration):
    """The child with the greatest upper confidence bound."""
    return max(
        node.children,
        key=lambda child: (
            float("inf")
            if child.visits == 0
            else child.total / child.visits + exploration * math.sqrt(math.log(node.visits) / child.visits)
        ),
    )


async def expand(node, width, tokens, first_seed):
    branches = await node.ctx.fork(width)
    steps = await asyncio.gather(
        *[
            branch.generate(max_tokens=tokens, temperature=0.9, seed=first_seed + at, stop=["\n"])
            for at, branch in enumerate(branches)
        ]
    )
    for branch, step in zip(branches, steps):
        is_end = step.finish_reason == "stop" and len(step.tokens) < 2
        node.children.append(Node(branch, node, node.text + step.text, is_end))


async def simulate(node, tokens, digits):
    play = await node.ctx.fork()
    rest = await play.generate(max_tokens=tokens, temperature=0.0)
    await play.append([{"role": "user", "content": "Rate that answer from 1 (wrong) to 9 (perfect)."}])
    rating = await play.generate(max_tokens=2, temperature=0.0, constrain=digits)
    await play.release()
    return int(rating.text) / 9.0, node.text + rest.text


async def main(request, lm):
    args = request.args
    digits = await lm.constraint({"regex": "[1-9]"})
    root = Node(await lm.context(request.messages), None, "", False)
    best, best_reward, num_nodes = "", -1.0, 0
    for number in range(args["rounds"]):
        node, depth = root, 0
        while node.children:
            node, depth = chosen(node, args["exploration"]), depth + 1
        if depth < args["depth"] and not node.is_end and (node.visits or node is root):
            await expand(node, args["width"], args["step_tokens"], 1000 * number)
            num_nodes += args["width"]
            node = node.children[0]
        reward, answer = await simulate(node, args["answer_tokens"], digits)
        if reward > best_reward:
            best, best_reward = answer, reward
        await lm.emit_event("round", {"number": number, "reward": reward, "nodes": num_nodes})
        while node is not None:
            node.visits += 1
            node.total += reward
            node = node.parent
    return best
