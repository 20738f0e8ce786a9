"""Other people's engines in the benchmark, each in a process of its own, on the same weights.

    model_files.py   our weights as a Hugging Face folder and as a GGUF file
    places.py        where a peer is installed, or the one line that says how to install it
    protocol.py      the child's half of the conversation, without torch
    process.py       the parent's half: start, ask, end
    vllm_child.py, llamacpp_child.py, hf_cb_child.py   one engine each

A child gets JSON lines on its standard input and answers each with one JSON line.
"""
