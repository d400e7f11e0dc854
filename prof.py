import sys; sys.path[:0]=['benchmarks']
import torch, time, cProfile, pstats
from llama_prompts import *
write=legato_side(SHAPES['1b'])
p=prompts_of(256,202,1); write(p,1); write(p,64); 
for i in range(2):
    t=time.perf_counter(); write(prompts_of(256,202,5+i),64); print('256x64', time.perf_counter()-t)
t=time.perf_counter(); write(p,1); print('256x1', time.perf_counter()-t)
pr=cProfile.Profile(); pr.enable(); write(prompts_of(256,202,9),64); pr.disable()
pstats.Stats(pr).sort_stats('tottime').print_stats(18)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
    t=time.perf_counter(); write(prompts_of(256,202,3),64); torch.cuda.synchronize(); print('wall', time.perf_counter()-t)
rows=sorted([e for e in prof.key_averages() if e.device_time_total>0 and str(e.device_type).endswith('CUDA')], key=lambda e:-e.self_device_time_total)[:22]
print(' total ms', sum(e.self_device_time_total for e in prof.key_averages() if str(e.device_type).endswith('CUDA'))/1e3)
for e in rows: print('  %8.2f ms %5d  %s'%(e.self_device_time_total/1e3,e.count,e.key[:90]))
