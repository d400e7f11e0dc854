import torch, sys, itertools
from legato.nn.kernels.cuda import paged_attention as pa
from legato.nn.block_cache import KVCache, Reading
from legato.nn.positions import Rotation
def case(M,t,H,G,K,rot=True,cap=2048):
    like=torch.empty(0,dtype=torch.bfloat16,device='cuda')
    c=KVCache(4,G,K,blocks=M*(-(-(t+1)//16)),rows=M,capacity=cap,like=like)
    c.store.normal_()
    for r in range(M): c.begin(r,[1]*(t+1)); c.reserve(r,t+1)
    c.flush(); c.lengths.fill_(t)
    qkv=torch.randn(M,(H+2*G)*K,device='cuda',dtype=torch.bfloat16)
    slots=c.table.gather(1,c.lengths[:,None])[:,0].long()
    depth=256
    while depth<t+1: depth*=2
    rd=Reading(torch.arange(M+1,dtype=torch.int32,device='cuda'),c.lengths,slots,c.table,1,depth)
    ro=Rotation(torch.randn(cap,K,device='cuda'),torch.randn(cap,K,device='cuda')) if rot else None
    def f():
        for l in range(4): pa.attend_rows(qkv,c.store[l],rd,ro,None,None,None,None,H,G,K)
    s=torch.cuda.Stream()
    with torch.cuda.stream(s):
        for _ in range(2): f()
    torch.cuda.synchronize()
    g=torch.cuda.CUDAGraph()
    with torch.cuda.graph(g): 
        for _ in range(10): f()
    for _ in range(3): g.replay()
    a,b=torch.cuda.Event(enable_timing=True),torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize(); a.record(); 
    for _ in range(10): g.replay()
    b.record(); torch.cuda.synchronize()
    return a.elapsed_time(b)/400*1e3
T=pa.RowTile
shapes={'gpt2 64x100':(64,100,12,12,64,False,1024),'gpt2 64x200':(64,200,12,12,64,False,1024),'7b 1x100':(1,100,32,32,128),'7b 64x100':(64,100,32,32,128),'1b 64x330':(64,330,32,8,64,True,8192),'1b 256x260':(256,260,32,8,64,True,8192),'1b 1x300':(1,300,32,8,64,True,8192),'1b 1x4000':(1,4000,32,8,64,True,8192)}
vs={'now':None,'plain 1,64,4':T(1,64,4,1,False),'plain 4,16,4':T(4,16,4,1,False),'dot 4,32,4,3':T(4,32,4,3,True),'dot 4,32,4,2':T(4,32,4,2,True),'dot 2,32,2,3':T(2,32,2,3,True),'dot 4,16,4,3':T(4,16,4,3,True),'dot 1,64,4,3':T(1,64,4,3,True)}
orig=pa.row_tile
for L in (128,256):
    pa.LEAST=L
    for n,s in shapes.items():
        out=[]
        for v,tile in vs.items():
            pa.row_tile=(lambda *a: tile) if tile else orig
            try: out.append('%s %.1f'%(v,case(*s)))
            except Exception as e: out.append(v+' '+type(e).__name__)
        print(L,n,' | '.join(out),flush=True)
