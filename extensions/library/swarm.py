"""Swarm: several roles discuss, each with a context of its own that grows by what the others say.

After Du et al., "Improving Factuality and Reasoning through Multiagent Debate" (arXiv 2305.14325): every round each
role sees the last words of all others and answers again; the first role writes what was agreed.
"""

EXTENSION = {
    "name": "swarm",
    "version": "1.0.0",
    "params": {
        "type": "object",
        "properties": {
            "roles": {
                "type": "array",
                "items": {"type": "string"},
                "minItems": 2,
                "maxItems": 8,
                "default": ["a careful optimist", "a careful sceptic"],
            },
            "rounds": {"type": "integer", "minimum": 1, "maximum": 6, "default": 2},
            "max_tokens": {"type": "integer", "minimum": 1, "default": 60},
        },
        "additionalProperties": False,
    },
}


async def speak(agent, heard, tokens, seed):
    if heard:
        await agent.append([{"role": "user", "content": heard + "\nWhat do you say now?"}])
    said = await agent.generate(max_tokens=tokens, temperature=0.7, seed=seed)
    return said.text.strip()


async def main(request, lm):
    args = request.args
    roles, agents = args["roles"], []
    for role in roles:
        agents.append(await lm.context([{"role": "system", "content": f"You are {role}."}, *request.messages]))
    said: list[str] = []
    for number in range(args["rounds"]):
        heard = [
            "\n".join([f"{role}: {text}" for other, (role, text) in enumerate(zip(roles, said)) if other != at])
            for at in range(len(roles))
        ]
        said = await asyncio.gather(
            *[speak(agent, heard[at], args["max_tokens"], 10 * number + at) for at, agent in enumerate(agents)]
        )
        await lm.emit_event("round", {"number": number, "said": dict(zip(roles, said))})
    await agents[0].append(
        [
            {
                "role": "user",
                "content": "\n".join(said) + "\nWrite the answer that you all agree on, in one or two sentences.",
            }
        ]
    )
    agreed = await agents[0].generate(max_tokens=args["max_tokens"], temperature=0.0, emit=True)
    return agreed.text
