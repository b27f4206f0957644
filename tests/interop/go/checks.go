package main

// The checks every lock library must pass; ../README.md says what each means. Those that need the leader
// killed are in failover.go.

import (
	"context"
	"errors"
	"fmt"
	"time"
)

type check struct {
	name string
	run  func(ctx context.Context, t *trial) error
}

var commonChecks = []check{
	{"acquire", acquire},
	{"contention", contention},
	{"extend", extend},
	{"expiry", expiry},
	{"stranger", stranger},
	{"waiting", waiting},
	{"lock.acquire", lockAcquire},
	{"exclusion", exclusion},
}

const (
	longTTL  = 20 * time.Second
	shortTTL = 800 * time.Millisecond
)

// pair opens two clients at two nodes.
func (t *trial) pair(ttl time.Duration) (a, b locker, closeBoth func(), err error) {
	if a, err = t.open(0, ttl); err != nil {
		return nil, nil, nil, err
	}
	if b, err = t.open(1, ttl); err != nil {
		a.close()
		return nil, nil, nil, err
	}
	return a, b, func() { a.close(); b.close() }, nil
}

func acquire(ctx context.Context, t *trial) error {
	a, err := t.open(0, longTTL)
	if err != nil {
		return err
	}
	defer a.close()
	name := t.name("acquire")
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	info, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if info.state != "held" || info.fence <= 0 || info.owner == "" {
		return fmt.Errorf("LOCK.INFO says %+v", info)
	}
	if err := h.release(ctx); err != nil {
		return fmt.Errorf("release: %w", err)
	}
	return t.untilFree(ctx, t.lib.key(name), time.Second)
}

func contention(ctx context.Context, t *trial) error {
	a, b, closeBoth, err := t.pair(longTTL)
	if err != nil {
		return err
	}
	defer closeBoth()
	name := t.name("contention")
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	if _, err := b.try(ctx, name); !errors.Is(err, errTaken) {
		return fmt.Errorf("the second client got %v, expected it refused", err)
	}
	if err := h.release(ctx); err != nil {
		return err
	}
	h, err = b.try(ctx, name)
	if err != nil {
		return fmt.Errorf("after the release: %w", err)
	}
	return h.release(ctx)
}

func extend(ctx context.Context, t *trial) error {
	const ttl = 1500 * time.Millisecond
	a, b, closeBoth, err := t.pair(ttl)
	if err != nil {
		return err
	}
	defer closeBoth()
	name := t.name("extend")
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	granted := time.Now()
	before, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	time.Sleep(ttl/2 - time.Since(granted))
	if err := h.extend(ctx); err != nil {
		return err
	}
	time.Sleep(ttl + 100*time.Millisecond - time.Since(granted))
	if _, err := b.try(ctx, name); !errors.Is(err, errTaken) {
		return fmt.Errorf("after the first ttl another client got %v", err)
	}
	after, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if after.fence != before.fence {
		return fmt.Errorf("the renewal changed the fence from %d to %d", before.fence, after.fence)
	}
	return h.release(ctx)
}

func expiry(ctx context.Context, t *trial) error {
	return t.afterExpiry(ctx, "expiry", func(old held, _ string) error {
		if err := old.extend(ctx); err == nil {
			return errors.New("extending the expired lock was allowed")
		}
		return nil
	})
}

func stranger(ctx context.Context, t *trial) error {
	return t.afterExpiry(ctx, "stranger", func(old held, name string) error {
		if err := old.release(ctx); err == nil {
			return errors.New("the release by the former holder was allowed")
		}
		info, err := t.info(ctx, t.lib.key(name))
		if err == nil && info.state != "held" {
			err = errors.New("the release by the former holder freed the lock")
		}
		return err
	})
}

// afterExpiry lets a lock of one client run out, takes it with another, and hands the old one to then.
func (t *trial) afterExpiry(ctx context.Context, what string, then func(old held, name string) error) error {
	a, err := t.open(0, shortTTL)
	if err != nil {
		return err
	}
	defer a.close()
	b, err := t.open(1, longTTL)
	if err != nil {
		return err
	}
	defer b.close()
	name := t.name(what)
	asked := time.Now()
	old, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	before, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if t.lib.abandon != nil {
		t.lib.abandon(a)
	}
	err = eventually(6*time.Second, "another client gets the lock", func() (bool, error) {
		_, err := b.try(ctx, name)
		if errors.Is(err, errTaken) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return err
	}
	if lasted := time.Since(asked); lasted < shortTTL {
		return fmt.Errorf("passed to another after %v, before its ttl of %v", lasted, shortTTL)
	}
	after, err := t.info(ctx, t.lib.key(name))
	if err != nil {
		return err
	}
	if after.fence <= before.fence {
		return fmt.Errorf("fence %d after the expiry, %d before it", after.fence, before.fence)
	}
	return then(old, name)
}

func waiting(ctx context.Context, t *trial) error {
	a, b, closeBoth, err := t.pair(longTTL)
	if err != nil {
		return err
	}
	defer closeBoth()
	return t.waitThrough(ctx, "waiting", a, b, func() error {
		time.Sleep(300 * time.Millisecond)
		return nil
	})
}

// waitThrough: a holds, b waits, something happens; b must not come through before a's release and must after it.
func (t *trial) waitThrough(ctx context.Context, what string, a, b locker, happens func() error) error {
	name := t.name(what)
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() {
		second, err := waitLong(ctx, b, name)
		if err == nil {
			err = patiently(ctx, second.release)
		}
		got <- err
	}()
	if err := happens(); err != nil {
		return err
	}
	select {
	case err := <-got:
		return fmt.Errorf("the waiter came through while the lock was held: %v", err)
	default:
	}
	if err := patiently(ctx, h.release); err != nil {
		return err
	}
	select {
	case err := <-got:
		if err != nil {
			return fmt.Errorf("the waiter: %w", err)
		}
		return nil
	case <-time.After(12 * time.Second):
		return errors.New("the waiter did not get the lock within 12 s of the release")
	}
}

func lockAcquire(ctx context.Context, t *trial) error {
	a, err := t.open(1, longTTL) // the questions are asked at the first node
	if err != nil {
		return err
	}
	defer a.close()
	name := t.name("lock.acquire")
	if err := t.refusesLockAcquire(ctx, a, name); err != nil {
		return err
	}
	return t.refusedByLockAcquire(ctx, a, name+":other")
}

// refusesLockAcquire: while the library holds, LOCK.ACQUIRE gets nothing, and with WAIT it gets the key on release.
func (t *trial) refusesLockAcquire(ctx context.Context, a locker, name string) error {
	h, err := a.try(ctx, name)
	if err != nil {
		return err
	}
	key := t.lib.key(name)
	held, err := t.info(ctx, key)
	if err != nil {
		return err
	}
	if fence, err := t.lockAcquire(ctx, key, time.Second, 0); fence != 0 || err != nil {
		return fmt.Errorf("LOCK.ACQUIRE while the library held the lock gave fence %d, %v", fence, err)
	}
	released := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { released <- h.release(ctx) })
	fence, err := t.lockAcquire(ctx, key, time.Second, 5*time.Second)
	if err != nil || fence <= held.fence {
		return fmt.Errorf("LOCK.ACQUIRE WAIT after the release gave fence %d, %v (it was %d)", fence, err, held.fence)
	}
	return <-released
}

// refusedByLockAcquire: while LOCK.ACQUIRE holds the name, the library does not get it, and does after LOCK.RELEASE.
func (t *trial) refusedByLockAcquire(ctx context.Context, a locker, name string) error {
	keys := t.lib.keys(name)
	fences := make([]int64, len(keys))
	for i, key := range keys {
		var err error
		if fences[i], err = t.lockAcquire(ctx, key, longTTL, 0); err != nil || fences[i] == 0 {
			return fmt.Errorf("LOCK.ACQUIRE of a free name: %d, %v", fences[i], err)
		}
	}
	if _, err := a.try(ctx, name); !errors.Is(err, errTaken) {
		return fmt.Errorf("the library got %v while LOCK.ACQUIRE held the name", err)
	}
	for i, key := range keys {
		if err := t.lockRelease(ctx, key, fences[i]); err != nil {
			return err
		}
	}
	h, err := a.try(ctx, name)
	if err != nil {
		return fmt.Errorf("after LOCK.RELEASE: %w", err)
	}
	return h.release(ctx)
}
