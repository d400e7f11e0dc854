import sys; sys.path[:0]=['benchmarks']
import torch, time, warnings
from llama_prompts import *
write=legato_side(SHAPES['1b'])
for n in range(4):
    p=prompts_of(8,3039,n); t=time.perf_counter(); write(p,64); print('8 long 64', time.perf_counter()-t, max(map(len,p)), sum(map(len,p)),flush=True)
for n in range(2):
    p=prompts_of(8,3039,n); t=time.perf_counter(); write(p,1); print('8 long 1', time.perf_counter()-t,flush=True)
import cProfile,pstats
pr=cProfile.Profile(); pr.enable(); write(prompts_of(8,3039,9),64); pr.disable()
pstats.Stats(pr).sort_stats('tottime').print_stats(9)
