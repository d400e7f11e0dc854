import sys; sys.path[:0]=['tests','tests/decoding']
import torch, time
from random_models import surer
from legato.decoding.engine import Engine
from tiny_searches import assert_same, options
V=23
def prompts(count): return [[1 + (3 * n + 5 * at) % (V - 1) for at in range(1 + n*7 % 40)] for n in range(count)]
for name in ['gpt2','llama']:
    model=surer(name,V).to('cuda')
    hows=[{}, {"kind":"sample","temperature":0.7},{"kind":"sample","top_k":5,"top_p":.8,"seed":2},{"repetition_penalty":1.4},{"kind":"sample","min_p":.1,"repetition_penalty":1.2},{"kind":"sample","nbest":3}]
    for chunk in (None,6):
        ps=[p[:20] for p in prompts(12)]
        eng=Engine(model,ends=[0],suppress=[5],suppress_first=[7],recorded=True,rows=8,chunk=chunk)
        nums=[]
        for i,p in enumerate(ps):
            how=options(**{"max_tokens":12,"min_tokens":i%3,**hows[i%6]})
            nums+=[(n,p,how) for n in eng.add([p],how)]
            if i%2: eng.step()
        while eng.step(): pass
        bad=0
        for n,p,how in nums:
            ref=Engine(model,ends=[0],suppress=[5],suppress_first=[7],recorded=False)
            [m]=ref.add([p],how)
            while ref.step(): pass
            try: assert_same(eng.take(n), ref.take(m))
            except AssertionError as e: bad+=1; print(name,chunk,how.search,str(e)[:200])
        lane=None
        print(name,chunk,'bad',bad,'graphs', len(model.__dict__['_runners'].free[1]._graphs) if model.__dict__['_runners'].free else None)
